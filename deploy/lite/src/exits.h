// Early exit: a text leaves after the first group of layers whose head is certain of it, as
// fleetbert/engines/exits.py has it. A model that no text leaves early is one group.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "engine.h"
#include "heads.h"

namespace fleetbert {

struct Exits {
  std::vector<size_t> ends = {0};  // the last layer of each group
  double speed = 0;  // texts leave whose doubt is under it
  std::string doubt = "entropy";  // how it is told: a name of DOUBTS in fleetbert/engines/exits.py
  double spread = 1;  // of numbers and vectors, which tell it by their change
  int64_t pad_id = 0;
  std::vector<Head> heads;  // after each group but the last
};

// logits: what the model gives for a text, or [tokens, outputs]; layer: the last one that the
// text went through; 0 where none leaves early.
struct Answer {
  std::vector<float> logits;
  size_t layer = 0;
};

// exits.json and heads.safetensors in a variant's folder. Throws UserError.
Exits read_exits(const std::filesystem::path& folder, size_t labels);

// The file of a group of layers.
std::string group_name(size_t end);

// Answers of a batch, each text leaving at its own speed (`speeds`, one a text).
std::vector<Answer> answer_batch(Engine& engine, const Exits& exits, Batch batch,
                                 std::vector<double> speeds);

// Probabilities of logits.
std::vector<float> softmax(const std::vector<float>& logits);

}  // namespace fleetbert
