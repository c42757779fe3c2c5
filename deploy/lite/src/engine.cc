#include "engine.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "error.h"

namespace fleetbert {
namespace {

class Fake : public Engine {
 public:
  Fake(const Model& model, int delay_ms)
      : groups_(model.groups.size()),
        labels_(model.outputs),
        per_token_(model.per_token),
        width_(model.width),
        pad_id_(model.pad_id),
        delay_ms_(delay_ms) {}

  std::vector<float> run(size_t group, const Batch& batch,
                         const std::vector<float>& state) override {
    if (group == 0) std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms_));
    if (groups_ == 1) return per_token_ ? tokens(batch) : whole(batch);
    return group + 1 == groups_ ? last(batch, state) : inner(group, batch, state);
  }

  std::string version() const override { return "fake"; }

 private:
  std::vector<float> whole(const Batch& batch) const {
    std::vector<float> logits;
    logits.reserve(batch.texts * labels_);
    for (size_t row = 0; row < batch.texts; ++row) {
      uint64_t sum = 0;
      for (size_t column = 0; column < batch.length; ++column) {
        const auto at = row * batch.length + column;
        if (batch.input_ids[at] == pad_id_) continue;  // padding
        sum += static_cast<uint64_t>(batch.input_ids[at] + 1000 * batch.token_type_ids[at]) *
               (column + 1);
      }
      for (size_t label = 0; label < labels_; ++label) {
        logits.push_back(static_cast<float>(sum * (label + 1) % 97) / 16.0f);
      }
    }
    return logits;
  }

  std::vector<float> tokens(const Batch& batch) const {
    std::vector<float> logits;
    logits.reserve(batch.input_ids.size() * labels_);
    for (size_t token = 0; token < batch.input_ids.size(); ++token) {
      const auto id = static_cast<uint64_t>(batch.input_ids[token]);
      for (size_t label = 0; label < labels_; ++label) {
        logits.push_back(static_cast<float>(id * (label + 1) * (label + 1) % 97) / 16.0f);
      }
    }
    return logits;
  }

  // Multiples of 1/1024 at most, so that every processor computes the same.
  std::vector<float> inner(size_t group, const Batch& batch,
                           const std::vector<float>& state) const {
    std::vector<float> found(batch.input_ids.size() * width_);
    for (size_t token = 0; token < batch.input_ids.size(); ++token) {
      const auto id = batch.input_ids[token];
      for (size_t i = 0; i < width_; ++i) {
        const auto at = token * width_ + i;
        found[at] = group == 0
                        ? static_cast<float>((id + 1000 * batch.token_type_ids[token]) *
                                             static_cast<int64_t>(i + 1) % 17) / 8 - 1
                        : static_cast<float>(id % 3) - state[at] / 2;
      }
    }
    return found;
  }

  std::vector<float> last(const Batch& batch, const std::vector<float>& state) const {
    std::vector<float> logits((per_token_ ? batch.input_ids.size() : batch.texts) * labels_);
    for (size_t token = 0; token < batch.input_ids.size(); ++token) {
      if (batch.input_ids[token] == pad_id_) continue;  // padding
      const auto row = token / batch.length, column = token % batch.length;
      for (size_t label = 0; label < labels_; ++label) {
        logits[(per_token_ ? token : row) * labels_ + label] +=
            state[token * width_ + label % width_] * static_cast<float>(column + 1) / 16;
      }
    }
    return logits;
  }

  size_t groups_, labels_;
  bool per_token_;
  size_t width_;
  int64_t pad_id_;
  int delay_ms_;
};

}  // namespace

bool has_lite() {
#ifdef FLEETBERT_WITH_LITE
  return true;
#else
  return false;
#endif
}

const std::vector<std::string>& power_modes() {
  // In the order of Paddle Lite's enumeration.
  static const std::vector<std::string> modes = {"high",    "low",       "full",
                                                 "no-bind", "rand-high", "rand-low"};
  return modes;
}

std::unique_ptr<Engine> open_fake(const Model& model, int delay_ms) {
  return std::make_unique<Fake>(model, delay_ms);
}

std::unique_ptr<Engine> open_engine(const Model& model, const EngineOptions& options) {
  if (options.engine == "fake") return open_fake(model, options.delay_ms);
  if (!options.engine.empty() && options.engine != "lite") {
    throw UserError("engine is " + options.engine + "; choose lite or fake");
  }
#ifdef FLEETBERT_WITH_LITE
  return open_lite(model, options.threads, options.power_mode);
#else
  throw UserError("this program was built without Paddle Lite, so it cannot open " +
                  model.groups[0].string() + ": build it with cmake -DLITE_DIR=FOLDER, the library "
                  "of Paddle Lite's releases");
#endif
}

}  // namespace fleetbert
