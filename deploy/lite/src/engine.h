// What answers: token ids in, outputs out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fleetbert {

// Rows of token ids, row-major [texts, length], padded with the id of [PAD].
struct Batch {
  size_t texts = 0;
  size_t length = 0;
  std::vector<int64_t> input_ids;
  std::vector<int64_t> token_type_ids;  // only the first group of layers needs them
};

// A model's files, one for each group of layers; most models are one.
struct Model {
  std::vector<std::filesystem::path> groups;
  size_t outputs = 0;      // numbers for a text, or for each token
  bool per_token = false;
  size_t width = 0;  // of the hidden states between groups
  int64_t pad_id = 0;
};

struct EngineOptions {
  std::string engine;                // lite or fake; empty: lite
  int threads = 1;
  std::string power_mode = "no-bind";  // which cores of a big.LITTLE processor
  int delay_ms = 0;                  // of the fake engine, for each batch
  std::optional<double> speed;       // of early exit; nothing: the variant's own
};

class Engine {
 public:
  virtual ~Engine() = default;
  // What a group of layers (counted from 0) gives, row-major: of the last one outputs [texts,
  // outputs], per token [texts, length, outputs]; of others hidden states [texts, length, width].
  // state: what the group before gave. One thread at a time. Throws std::runtime_error.
  virtual std::vector<float> run(size_t group, const Batch& batch,
                                 const std::vector<float>& state) = 0;
  virtual std::string version() const = 0;
};

// Whether this program was built with Paddle Lite.
bool has_lite();

// The words for EngineOptions.power_mode.
const std::vector<std::string>& power_modes();

// Opens a model. Throws UserError where the program was built without the engine.
std::unique_ptr<Engine> open_engine(const Model& model, const EngineOptions& options);

// For tests: outputs that are a sum over the ids, the same in every batch.
std::unique_ptr<Engine> open_fake(const Model& model, int delay_ms);

#ifdef FLEETBERT_WITH_LITE
std::unique_ptr<Engine> open_lite(const Model& model, int threads, const std::string& power_mode);
#endif

}  // namespace fleetbert
