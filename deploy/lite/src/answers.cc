#include "answers.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "contexts.h"
#include "unicode.h"

namespace fleetbert {
namespace {

using nlohmann::ordered_json;

size_t largest(const float* first, size_t count) {
  return static_cast<size_t>(std::max_element(first, first + count) - first);
}

ordered_json label_in_json(const Bundle& bundle, size_t number) {
  if (bundle.integers.empty()) return bundle.labels[number];
  return bundle.integers[number];
}

std::vector<float> scores_of(const Bundle& bundle, const Answer& answer) {
  if (bundle.kind == Kind::kLabel) return softmax(answer.logits);
  std::vector<float> scores;
  for (const auto logit : answer.logits) {
    scores.push_back(static_cast<float>(1 / (1 + std::exp(-static_cast<double>(logit)))));
  }
  return scores;
}

// The labels above their thresholds, the likeliest first.
ordered_json chosen(const Bundle& bundle, const std::vector<float>& scores) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t one, size_t other) { return scores[one] > scores[other]; });
  auto names = ordered_json::array();
  for (const auto number : order) {
    if (static_cast<double>(scores[number]) > bundle.thresholds[number]) {
      names.push_back(label_in_json(bundle, number));
    }
  }
  return names;
}

// What a tag says: its kind ("" of O), and whether it is of a span's first word, or of its last.
struct Tag {
  std::string kind;
  bool begins = false, ends = false;
};

Tag tag_of(const std::string& label) {
  const auto dash = label.find('-');
  const auto prefix = label.substr(0, dash);
  const auto is_one_of = [&](const char* letters) {
    return std::string(letters).find(prefix) != std::string::npos;
  };
  return {dash == std::string::npos ? "" : label.substr(dash + 1), is_one_of("BSU"),
          is_one_of("ESLU")};
}

struct Span {
  size_t start = 0, end = 0;
  std::string kind;
  double score = 0;  // the sum of its words'
  size_t words = 0;
};

// As conll.py reads tags: a span ends before another kind, before one that begins, after an end.
std::vector<Span> spans_of(const Bundle& bundle, const Row& row, const Answer& answer) {
  std::vector<Tag> tags;
  for (const auto& label : bundle.labels) tags.push_back(tag_of(label));
  std::vector<Span> spans;
  const Tag* former = nullptr;
  for (const auto& word : row.words) {
    const auto* first = answer.logits.data() + word.token * bundle.outputs;
    const std::vector<float> logits(first, first + bundle.outputs);
    const auto best = largest(first, bundle.outputs);
    const auto& tag = tags[best];
    if (!tag.kind.empty()) {
      if (tag.begins || former == nullptr || former->kind != tag.kind || former->ends) {
        spans.push_back({word.begin, word.end, tag.kind, 0, 0});
      }
      auto& span = spans.back();
      span.end = word.end;
      span.score += static_cast<double>(softmax(logits)[best]);
      ++span.words;
    }
    former = &tag;
  }
  return spans;
}

ordered_json spans_in_json(const Bundle& bundle, const Row& row, const Answer& answer) {
  const auto characters = decode_utf8(row.text);
  auto found = ordered_json::array();
  for (const auto& span : spans_of(bundle, row, answer)) {
    const auto text = encode_utf8(characters, span.start, span.end);
    found.push_back({{"start", span.start},
                     {"end", span.end},
                     {"kind", span.kind},
                     {"score", rounded(span.score / static_cast<double>(span.words))},
                     {"text", text}});
  }
  return found;
}

}  // namespace

std::vector<Told> tensors_of(const Bundle& bundle, bool early_exit) {
  std::vector<Told> tensors;
  switch (bundle.kind) {
    case Kind::kLabel:
    case Kind::kLabels:
      tensors = {{bundle.kind == Kind::kLabel ? "label" : "labels", "BYTES", 0},
                 {"scores", "FP32", bundle.outputs},
                 {"logits", "FP32", bundle.outputs}};
      break;
    case Kind::kNumber:
      tensors = {{"values", "FP32", 0}};
      break;
    case Kind::kVector:
      tensors = {{"embedding", "FP32", bundle.outputs}};
      break;
    case Kind::kSpans:
      tensors = {{"spans", "BYTES", 0}};
      break;
    case Kind::kAnswer:
      tensors = {{"answer", "BYTES", 0}};
  }
  if (early_exit) tensors.push_back({"exit_layer", "INT32", 0});
  return tensors;
}

std::string text_of(const Bundle& bundle, const Row& row, const Answer& answer) {
  if (bundle.kind == Kind::kLabel) {
    return bundle.labels[largest(answer.logits.data(), bundle.outputs)];
  }
  if (bundle.kind == Kind::kLabels) return chosen(bundle, scores_of(bundle, answer)).dump();
  if (bundle.kind == Kind::kAnswer) return answer_in_context(bundle, row, answer).dump();
  return spans_in_json(bundle, row, answer).dump();
}

std::vector<float> numbers_of(const Bundle& bundle, const std::string& name,
                              const Answer& answer) {
  return name == "scores" ? scores_of(bundle, answer) : answer.logits;
}

double rounded(double value) { return std::round(value * 1e6) / 1e6; }

ordered_json labels_in_json(const Bundle& bundle) {
  if (bundle.integers.empty()) return bundle.labels;
  return bundle.integers;
}

ordered_json in_json(const Bundle& bundle, const Row& row, const Answer& answer) {
  ordered_json told;
  if (bundle.kind == Kind::kAnswer) told = answer_in_context(bundle, row, answer);
  if (bundle.kind == Kind::kNumber) told["value"] = rounded(static_cast<double>(answer.logits[0]));
  if (bundle.kind == Kind::kSpans) told["spans"] = spans_in_json(bundle, row, answer);
  if (bundle.kind == Kind::kVector) {
    for (const auto value : answer.logits) {
      told["vector"].push_back(rounded(static_cast<double>(value)));
    }
  }
  if (bundle.kind == Kind::kLabel || bundle.kind == Kind::kLabels) {
    const auto scores = scores_of(bundle, answer);
    if (bundle.kind == Kind::kLabel) {
      told["label"] = label_in_json(bundle, largest(answer.logits.data(), bundle.outputs));
    } else {
      told["labels"] = chosen(bundle, scores);
    }
    for (size_t i = 0; i < scores.size(); ++i) {
      told["scores"][bundle.labels[i]] = rounded(static_cast<double>(scores[i]));
    }
  }
  if (answer.layer != 0) told["exit_layer"] = answer.layer;
  return told;
}

}  // namespace fleetbert
