#include "engine.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "error.h"

namespace fleetbert {
namespace {

class Fake : public Engine {
 public:
  Fake(size_t labels, int delay_ms) : labels_(labels), delay_ms_(delay_ms) {}

  std::vector<float> run(const Batch& batch) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms_));
    std::vector<float> logits;
    logits.reserve(batch.texts * labels_);
    for (size_t row = 0; row < batch.texts; ++row) {
      uint64_t sum = 0;
      for (size_t column = 0; column < batch.length; ++column) {
        const auto at = row * batch.length + column;
        if (batch.input_ids[at] == 0) continue;  // padding
        sum += static_cast<uint64_t>(batch.input_ids[at] + 1000 * batch.token_type_ids[at]) *
               (column + 1);
      }
      for (size_t label = 0; label < labels_; ++label) {
        logits.push_back(static_cast<float>(sum * (label + 1) % 97) / 16.0f);
      }
    }
    return logits;
  }

  std::string version() const override { return "fake"; }

 private:
  size_t labels_;
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

std::unique_ptr<Engine> open_fake(size_t labels, int delay_ms) {
  return std::make_unique<Fake>(labels, delay_ms);
}

std::unique_ptr<Engine> open_engine(const std::filesystem::path& model, size_t labels,
                                    const EngineOptions& options) {
  if (options.engine == "fake") return open_fake(labels, options.delay_ms);
  if (!options.engine.empty() && options.engine != "lite") {
    throw UserError("engine is " + options.engine + "; choose lite or fake");
  }
#ifdef FLEETBERT_WITH_LITE
  return open_lite(model, labels, options.threads, options.power_mode);
#else
  throw UserError("this program was built without Paddle Lite, so it cannot open " +
                  model.string() + ": build it with cmake -DLITE_DIR=FOLDER, the library of Paddle "
                  "Lite's releases");
#endif
}

}  // namespace fleetbert
