#include "queue.h"

namespace fleetbert {
namespace {

constexpr size_t kTokens = 1024;  // requests are answered together up to here

size_t tokens_of(const std::vector<Row>& rows) {
  size_t tokens = 0;
  for (const auto& row : rows) tokens += row.input_ids.size();
  return tokens;
}

}  // namespace

Queue::Queue(const Classifier& classifier, size_t capacity)
    : classifier_(classifier), capacity_(capacity), worker_([this] { work(); }) {}

Queue::~Queue() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

Answers Queue::answer(std::vector<Row> rows, Clock::time_point deadline) {
  auto job = std::make_unique<Job>();
  job->rows = std::move(rows);
  job->deadline = deadline;
  auto answer = job->answer.get_future();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (counts_.waiting + job->rows.size() > capacity_) {
      throw QueueFull("the queue is full: " + std::to_string(counts_.waiting) + " of " +
                      std::to_string(capacity_) + " texts wait; try again later");
    }
    counts_.waiting += job->rows.size();
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
  if (answer.wait_until(deadline) != std::future_status::ready) {
    throw DeadlinePassed("the request's timeout has passed");
  }
  return answer.get();
}

QueueCounts Queue::counts() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counts_;
}

void Queue::work() {
  for (auto jobs = take(); !jobs.empty(); jobs = take()) run(std::move(jobs));
}

Queue::Jobs Queue::take() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
  Jobs taken;
  for (size_t tokens = 0; !jobs_.empty();) {
    tokens += tokens_of(jobs_.front()->rows);
    if (!taken.empty() && tokens > kTokens) break;
    taken.push_back(std::move(jobs_.front()));
    jobs_.pop_front();
  }
  return taken;
}

void Queue::run(Jobs jobs) {
  const auto start = Clock::now();
  std::vector<const Row*> rows;
  QueueCounts added;
  size_t taken = 0;
  for (const auto& job : jobs) {
    taken += job->rows.size();
    if (job->deadline <= start) continue;  // nobody waits for it any more
    for (const auto& row : job->rows) {
      rows.push_back(&row);
      added.truncated += row.truncated;
    }
    added.tokens += tokens_of(job->rows);
  }
  Answers answers;
  std::exception_ptr failed;
  try {
    answers = classifier_.answer(rows);
  } catch (...) {
    failed = std::current_exception();
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    counts_.waiting -= taken;
    counts_.batches += !rows.empty();
    counts_.texts += rows.size();
    counts_.tokens += added.tokens;
    counts_.truncated += added.truncated;
    for (const auto& answer : answers) {
      if (answer.layer != 0) ++counts_.exits[answer.layer];
    }
    counts_.seconds += std::chrono::duration<double>(Clock::now() - start).count();
  }
  size_t next = 0;
  for (const auto& job : jobs) {
    if (job->deadline <= start) {
      job->answer.set_exception(
          std::make_exception_ptr(DeadlinePassed("the request's timeout has passed")));
    } else if (failed) {
      job->answer.set_exception(failed);
    } else {
      const auto first = answers.begin() + static_cast<std::ptrdiff_t>(next);
      next += job->rows.size();
      job->answer.set_value({first, answers.begin() + static_cast<std::ptrdiff_t>(next)});
    }
  }
}

}  // namespace fleetbert
