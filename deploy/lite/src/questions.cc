#include "questions.h"

#include <algorithm>

#include "contexts.h"

namespace fleetbert {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

void check_model(const json& given, const std::string& model) {
  if (given.is_null()) return;
  if (!given.is_string() || given == "") {
    refuse("model is " + show(given) + "; it has to be a name: this server has " + in_quotes(model));
  }
  if (given != model && given != model + "/1") {
    refuse("there is no model " + show(given) + "; this server has " + in_quotes(model), 404);
  }
}

ordered_json as_theirs(const ordered_json& candidate) {
  const bool has_text = !candidate["text"].is_null();
  const auto field = [&](const char* name, ordered_json lacking) {
    return has_text ? candidate[name] : lacking;
  };
  return {{"answer", field("text", "")},
          {"score", candidate["score"]},
          {"start", field("start", 0)},
          {"end", field("end", 0)}};
}

}  // namespace

ContextQuestion read_context_question(const std::string& body, const Classifier& classifier,
                                      const std::string& model, const Limits& limits) {
  const auto& bundle = classifier.bundle();
  if (bundle.kind != Kind::kAnswer) {
    refuse("model " + model + " does not answer with answers in a context: its task is " +
           bundle.task);
  }
  const auto message = parse_body(body);
  const auto& inputs = member(message, "inputs");
  if (!inputs.is_object()) {
    refuse("inputs is " + show(inputs) + "; it has to be an object of question and context");
  }
  json options = member(message, "parameters");
  if (options.is_null()) options = json::object();
  if (!options.is_object()) {
    refuse("parameters is " + show(options) + "; it has to be an object");
  }
  std::vector<std::string> texts;
  for (const auto* name : {"question", "context"}) {
    const auto& text = member(inputs, name);
    if (!text.is_string()) {
      refuse("inputs." + std::string(name) + " is " + show(text) + "; it has to be a text");
    }
    check_texts({text.get<std::string>()}, name, limits);
    texts.push_back(text.get<std::string>());
  }
  check_model(member(message, "model"), model);
  ContextQuestion question;
  const auto& top_k = member(options, "top_k");
  if (!top_k.is_null()) {
    if (!top_k.is_number_unsigned() || top_k == 0) {
      refuse("top_k is " + show(top_k) + "; it has to be a whole number from 1");
    }
    question.top_k = static_cast<size_t>(top_k.get<uint64_t>());
  }
  const auto& may_lack = member(options, "handle_impossible_answer");
  if (!may_lack.is_null()) {
    if (!may_lack.is_boolean()) {
      refuse("handle_impossible_answer is " + show(may_lack) + "; it has to be true or false");
    }
    question.may_lack = may_lack.get<bool>();
  }
  json given = message;
  given.update(options);
  question.unknown_parameters = names_of_others(
      given, {"model", "inputs", "parameters", "top_k", "handle_impossible_answer"});
  question.row = classifier.encode(texts[0], texts[1]);
  return question;
}

std::string render(const ContextQuestion& question, const Answer& answer, const Bundle& bundle) {
  auto best = answer_in_context(bundle, question.row, answer);
  const auto n_best = best["n_best"];
  best.erase("n_best");
  auto candidates = ordered_json::array();
  if (!question.may_lack) candidates.push_back(as_theirs(best));
  for (const auto& one : n_best) {
    const bool is_kept = !question.may_lack  ? one != best
                         : *question.may_lack ? true
                                              : !one["text"].is_null();
    if (is_kept) candidates.push_back(as_theirs(one));
  }
  if (candidates.empty()) candidates.push_back(as_theirs(best));  // the context has no tokens
  if (question.top_k == 1) return candidates[0].dump();
  while (candidates.size() > question.top_k) candidates.erase(candidates.size() - 1);
  return candidates.dump();
}

}  // namespace fleetbert
