// The answer to a question: a part of the context that comes with it, or none, as
// fleetbert/tasks/question_answering decodes it.
#pragma once

#include <nlohmann/json.hpp>

#include "bundle.h"
#include "classifier.h"

namespace fleetbert {

// text, start, end (characters of the context, null where it has no answer), score, and n_best: the
// likeliest ones with the same fields.
nlohmann::ordered_json answer_in_context(const Bundle& bundle, const Row& row,
                                         const Answer& answer);

}  // namespace fleetbert
