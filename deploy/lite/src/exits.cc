#include "exits.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "json_file.h"

namespace fleetbert {
namespace {

constexpr uint64_t kMaxSettings = 1u << 20;
constexpr size_t kMaxLayers = 1000;

// A batch between two groups: what the group before gave, the texts' places in the answer.
struct Waiting {
  Batch batch;
  std::vector<float> state;
  std::vector<size_t> numbers;
  std::vector<double> speeds;
  std::vector<std::vector<float>> former;  // what the head before answered each text, if there is one
};

// The same without other rows than `rows`, and no longer than these need.
Waiting keep(const Waiting& from, const std::vector<size_t>& rows, int64_t pad_id) {
  const auto length = from.batch.length;
  const auto width = from.state.size() / (from.batch.texts * length);
  Waiting kept;
  kept.batch.texts = rows.size();
  kept.batch.length = 1;
  for (const auto row : rows) {
    for (size_t token = kept.batch.length; token < length; ++token) {
      if (from.batch.input_ids[row * length + token] != pad_id) kept.batch.length = token + 1;
    }
  }
  for (const auto row : rows) {
    const auto ids = from.batch.input_ids.begin() + static_cast<std::ptrdiff_t>(row * length);
    const auto end = ids + static_cast<std::ptrdiff_t>(kept.batch.length);
    kept.batch.input_ids.insert(kept.batch.input_ids.end(), ids, end);
    const auto* state = from.state.data() + row * length * width;
    kept.state.insert(kept.state.end(), state, state + kept.batch.length * width);
    kept.numbers.push_back(from.numbers[row]);
    kept.speeds.push_back(from.speeds[row]);
    kept.former.push_back(from.former[row]);
  }
  return kept;
}

// Entropy of logits over the largest possible one: 0 to 1.
double uncertainty(const std::vector<float>& logits) {
  double entropy = 0;
  for (const auto score : softmax(logits)) {
    const auto chance = static_cast<double>(score);
    entropy -= chance * std::log(std::max(chance, 1e-12));
  }
  return entropy / std::log(static_cast<double>(logits.size()));
}

// That of the label with the largest: of having it and not.
double of_labels(const std::vector<float>& logits) {
  double largest = 0;
  for (const auto logit : logits) largest = std::max(largest, uncertainty({logit, 0}));
  return largest;
}

// That of the token with the largest, but for the special ones at both ends.
double of_tokens(const std::vector<float>& logits, size_t labels) {
  double largest = 0;
  for (auto at = labels; at + labels < logits.size(); at += labels) {
    const auto token = logits.begin() + static_cast<std::ptrdiff_t>(at);
    largest = std::max(largest,
                       uncertainty({token, token + static_cast<std::ptrdiff_t>(labels)}));
  }
  return largest;
}

// How far an answer is from the one before, in units of `spread`; 1 where there is none.
double change(const std::vector<float>& answer, const std::vector<float>& former, double spread) {
  if (former.empty()) return 1;
  double squares = 0;
  for (size_t i = 0; i < answer.size(); ++i) {
    const auto moved = static_cast<double>(answer[i] - former[i]);
    squares += moved * moved;
  }
  return std::min(1.0, std::sqrt(squares) / spread);
}

double doubt(const Exits& exits, const Head& head, const std::vector<float>& answer,
             const std::vector<float>& former) {
  if (exits.doubt == "labels") return of_labels(answer);
  if (exits.doubt == "tokens") return of_tokens(answer, head.layers.at("out").out);
  if (exits.doubt == "change") return change(answer, former, exits.spread);
  return uncertainty(answer);
}

}  // namespace

std::string group_name(size_t end) { return "group-" + std::to_string(end) + ".nb"; }

Exits read_exits(const std::filesystem::path& folder, size_t labels) {
  const auto path = folder / "exits.json";
  const auto settings = parse_json(read_file(path, kMaxSettings), path);
  const Reader reader(settings, "", path);
  Exits exits;
  exits.ends.clear();
  for (const auto& end : reader.at("ends").list()) {
    const auto layer = end.number();
    const auto least = exits.ends.empty() ? 1 : exits.ends.back() + 1;
    if (layer < least || layer > kMaxLayers) end.fail("is out of order");
    exits.ends.push_back(static_cast<size_t>(layer));
  }
  if (exits.ends.size() < 2) reader.at("ends").fail("has fewer than two groups");
  exits.speed = reader.at("speed").real();
  if (!(exits.speed >= 0 && exits.speed <= 1)) reader.at("speed").fail("is not from 0 to 1");
  const auto pad_id = reader.at("pad_id").number();
  if (pad_id > INT32_MAX) reader.at("pad_id").fail("is out of bounds");
  exits.pad_id = static_cast<int64_t>(pad_id);
  if (reader.has("doubt")) {  // older variants are of one label
    static const std::set<std::string> known = {"entropy", "labels", "tokens", "change"};
    exits.doubt = reader.at("doubt").text();
    if (known.count(exits.doubt) == 0) {
      reader.at("doubt").fail("is unknown here: take the fleetbert-lite of the fleetbert that wrote it");
    }
    exits.spread = reader.at("spread").real();
    if (!(exits.spread > 0)) reader.at("spread").fail("is not above 0");
  }
  exits.heads =
      read_heads(folder / "heads.safetensors", reader.at("head").text(), exits.ends, labels);
  return exits;
}

std::vector<Answer> answer_batch(Engine& engine, const Exits& exits, Batch batch,
                                 std::vector<double> speeds) {
  std::vector<Answer> answers(batch.texts);
  Waiting now{std::move(batch), {}, std::vector<size_t>(answers.size()), std::move(speeds),
              std::vector<std::vector<float>>(answers.size())};
  std::iota(now.numbers.begin(), now.numbers.end(), size_t{0});
  for (size_t group = 0;; ++group) {
    now.state = engine.run(group, now.batch, now.state);
    if (group + 1 == exits.ends.size()) break;
    std::vector<size_t> staying;
    for (size_t row = 0; row < now.batch.texts; ++row) {
      if (now.speeds[row] > 0) {
        const auto at = row * now.batch.length;
        const auto& head = exits.heads[group];
        auto logits = head_logits(head, now.state.data() + at * head.width,
                                  now.batch.input_ids.data() + at, now.batch.length, exits.pad_id);
        if (doubt(exits, head, logits, now.former[row]) < now.speeds[row]) {
          answers[now.numbers[row]] = {std::move(logits), exits.ends[group]};
          continue;
        }
        now.former[row] = std::move(logits);
      }
      staying.push_back(row);
    }
    if (staying.empty()) return answers;
    if (staying.size() < now.batch.texts) now = keep(now, staying, exits.pad_id);
  }
  const auto each = now.state.size() / now.batch.texts;
  for (size_t row = 0; row < now.batch.texts; ++row) {
    const auto* first = now.state.data() + row * each;
    answers[now.numbers[row]] = {{first, first + each}, exits.ends.back()};
  }
  return answers;
}

std::vector<float> softmax(const std::vector<float>& logits) {
  const auto top = *std::max_element(logits.begin(), logits.end());
  std::vector<float> scores(logits.size());
  float sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) sum += scores[i] = std::exp(logits[i] - top);
  for (auto& score : scores) score /= sum;
  return scores;
}

}  // namespace fleetbert
