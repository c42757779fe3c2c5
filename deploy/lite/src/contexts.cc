#include "contexts.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "answers.h"
#include "unicode.h"

namespace fleetbert {
namespace {

using nlohmann::ordered_json;

constexpr size_t kLongestAnswer = 64;  // tokens
constexpr size_t kCandidates = 20;     // of a question
constexpr size_t kListed = 5;          // of them

// From one token of the context to another; logit: the sum of those of begin and end.
struct Candidate {
  double logit = 0;
  size_t first = 0, last = 0;
};

bool is_better(const Candidate& one, const Candidate& other) {
  if (one.logit != other.logit) return one.logit > other.logit;
  return std::tie(one.first, one.last) < std::tie(other.first, other.last);
}

double logit_of(const Answer& answer, size_t token, size_t output) {
  return static_cast<double>(answer.logits[2 * token + output]);
}

// The likeliest answers, the best first.
std::vector<Candidate> candidates(const Row& row, const Answer& answer) {
  const auto& tokens = row.words;
  std::vector<Candidate> best;  // a heap: the worst of them is in front
  for (size_t first = 0; first < tokens.size(); ++first) {
    const auto begin = logit_of(answer, tokens[first].token, 0);
    const auto end = std::min(tokens.size(), first + kLongestAnswer);
    for (size_t last = first; last < end; ++last) {
      const Candidate one{begin + logit_of(answer, tokens[last].token, 1), first, last};
      if (best.size() == kCandidates) {
        if (!is_better(one, best.front())) continue;
        std::pop_heap(best.begin(), best.end(), is_better);
        best.pop_back();
      }
      best.push_back(one);
      std::push_heap(best.begin(), best.end(), is_better);
    }
  }
  std::sort_heap(best.begin(), best.end(), is_better);
  // Tokens of one character, as those of bytes, make one answer twice.
  std::vector<Candidate> kept;
  for (const auto& one : best) {
    const bool is_known = std::any_of(kept.begin(), kept.end(), [&](const Candidate& other) {
      return tokens[one.first].begin == tokens[other.first].begin &&
             tokens[one.last].end == tokens[other.last].end;
    });
    if (!is_known) kept.push_back(one);
  }
  return kept;
}

}  // namespace

ordered_json answer_in_context(const Bundle& bundle, const Row& row, const Answer& answer) {
  const bool may_lack = !bundle.labels.empty();
  const auto best = candidates(row, answer);
  const auto none = logit_of(answer, 0, 0) + logit_of(answer, 0, 1);
  std::vector<double> chances;
  for (const auto& one : best) chances.push_back(one.logit);
  if (may_lack) chances.push_back(none);
  const auto largest = chances.empty() ? 0 : *std::max_element(chances.begin(), chances.end());
  double sum = 0;
  for (auto& chance : chances) sum += chance = std::exp(chance - largest);
  for (auto& chance : chances) chance /= sum;

  struct Listed {
    double chance = 0;
    ordered_json fields;
  };
  const auto listed = [](ordered_json text, ordered_json start, ordered_json end, double chance) {
    return Listed{chance, {{"text", std::move(text)}, {"start", std::move(start)},
                           {"end", std::move(end)}, {"score", rounded(chance)}}};
  };
  const auto characters = decode_utf8(row.text);
  std::vector<Listed> n_best;
  for (size_t number = 0; number < best.size(); ++number) {
    const auto begin = row.words[best[number].first].begin;
    const auto end = row.words[best[number].last].end;
    n_best.push_back(listed(encode_utf8(characters, begin, end), begin, end, chances[number]));
  }
  const auto lacking = listed(nullptr, nullptr, nullptr, may_lack ? chances.back() : 0);
  const bool has_answer =
      !best.empty() &&
      !(may_lack && 0.5 * (1 + std::tanh(0.5 * (none - best[0].logit))) > bundle.thresholds[0]);
  auto found = has_answer ? n_best[0].fields : lacking.fields;
  if (may_lack) {
    n_best.push_back(lacking);
    std::stable_sort(n_best.begin(), n_best.end(), [](const Listed& one, const Listed& other) {
      return one.chance > other.chance;
    });
  }
  n_best.resize(std::min(n_best.size(), kListed));
  found["n_best"] = ordered_json::array();
  for (const auto& one : n_best) found["n_best"].push_back(one.fields);
  return found;
}

}  // namespace fleetbert
