// The normalizer of a tokenizer.json, step after step, as fleetbert's exporter writes it down
// (fleetbert/export/lite_unigram.py).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tensors.h"

namespace fleetbert {

class Normalizer {
 public:
  // steps: a list in the metadata of `file`. Throws UserError.
  Normalizer(const Reader& steps, const TensorFile& file);

  // Throws std::invalid_argument where text is not UTF-8.
  std::string operator()(std::string text) const;

 private:
  std::vector<std::function<std::string(const std::string&)>> steps_;
};

}  // namespace fleetbert
