// Requests wait here for the engine, which answers one batch at a time.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "classifier.h"

namespace fleetbert {

using Clock = std::chrono::steady_clock;
using Answers = std::vector<Answer>;

struct QueueFull : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct DeadlinePassed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct QueueCounts {
  size_t waiting = 0;  // texts
  size_t batches = 0, texts = 0, tokens = 0, truncated = 0;
  double seconds = 0;  // in the engine
  std::map<size_t, size_t> exits;  // texts by the layer that they left after
};

class Queue {
 public:
  // At most `capacity` texts wait or are answered at a time.
  Queue(const Classifier& classifier, size_t capacity);
  // Answers what waits, then stops.
  ~Queue();

  // The rows' answers. Throws QueueFull, DeadlinePassed, or what the engine threw.
  Answers answer(std::vector<Row> rows, Clock::time_point deadline);

  QueueCounts counts() const;

 private:
  struct Job {
    std::vector<Row> rows;
    Clock::time_point deadline;
    std::promise<Answers> answer;
  };
  using Jobs = std::vector<std::unique_ptr<Job>>;

  void work();
  Jobs take();
  void run(Jobs jobs);

  const Classifier& classifier_;
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Job>> jobs_;
  QueueCounts counts_;
  bool stopping_ = false;
  std::thread worker_;  // the last: it uses all of the above
};

}  // namespace fleetbert
