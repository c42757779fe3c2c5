// What a model's outputs tell of a text, as fleetbert/tasks has it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bundle.h"
#include "classifier.h"

namespace fleetbert {

// A tensor that the server tells. columns: values for each text; 0: one, without a dimension.
struct Told {
  std::string name;
  std::string datatype;  // of the Open Inference Protocol
  size_t columns = 0;
};

// All of them, `exit_layer` last.
std::vector<Told> tensors_of(const Bundle& bundle, bool early_exit);

// An answer's value in a tensor of BYTES: a label, a JSON list of labels or spans, or an object.
std::string text_of(const Bundle& bundle, const Row& row, const Answer& answer);

// Its values in a tensor of FP32.
std::vector<float> numbers_of(const Bundle& bundle, const std::string& name, const Answer& answer);

// A probability or value with six digits, as answers in JSON have it.
double rounded(double value);

// The labels in JSON: integers where the bundle's are.
nlohmann::ordered_json labels_in_json(const Bundle& bundle);

// An answer as `fleetbert predict` writes it.
nlohmann::ordered_json in_json(const Bundle& bundle, const Row& row, const Answer& answer);

}  // namespace fleetbert
