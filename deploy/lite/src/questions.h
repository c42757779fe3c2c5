// POST /question-answering: a question and a context, as Hugging Face's inference API takes them, as
// deploy/inference/protocol/http_questions.py has it.
// https://huggingface.co/docs/inference-providers/tasks/question-answering
#pragma once

#include <optional>
#include <string>

#include "body.h"
#include "classifier.h"

namespace fleetbert {

struct ContextQuestion {
  Row row;
  size_t top_k = 1;  // answers to list; 1: one that stands alone
  std::optional<bool> may_lack;  // whether none may be the answer; nothing: the model decides
  std::string unknown_parameters;  // names of those that change nothing
};

// What a body asks of the model of that name. Throws Failure with the field that is wrong.
ContextQuestion read_context_question(const std::string& body, const Classifier& classifier,
                                      const std::string& model, const Limits& limits);

// The answer's body. No answer is the empty text.
std::string render(const ContextQuestion& question, const Answer& answer, const Bundle& bundle);

}  // namespace fleetbert
