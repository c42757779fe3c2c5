// The classifiers after inner layers of a variant with early exit, as fleetbert/engines/exit_heads.py
// computes them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace fleetbert {

// weight is row-major [in, out], bias [out].
struct Linear {
  size_t in = 0, out = 0;
  std::vector<float> weight, bias;
};

// One classifier: its layers by their names in heads.safetensors.
struct Head {
  std::string kind;  // a name of KINDS in exit_heads.py
  size_t width = 0;  // of the hidden states it reads
  std::map<std::string, Linear> layers;
};

// The heads after the layers `ends`, in their order, from heads.safetensors. Throws UserError.
std::vector<Head> read_heads(const std::filesystem::path& path, const std::string& kind,
                             const std::vector<size_t>& ends, size_t labels);

// What a head answers one text: logits, of tokens [tokens, labels], or a vector. hidden: its states
// [length, width]; ids: of its tokens.
std::vector<float> head_logits(const Head& head, const float* hidden, const int64_t* ids,
                               size_t length, int64_t pad_id);

}  // namespace fleetbert
