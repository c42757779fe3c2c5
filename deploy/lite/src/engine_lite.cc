// Paddle Lite's engine, over the C++ API of its releases (paddle_api.h; 2.12, 2.13).
#include <paddle_api.h>

#include <algorithm>
#include <stdexcept>

#include "engine.h"
#include "error.h"

namespace fleetbert {
namespace {

namespace lite = paddle::lite_api;

const std::vector<std::string> kInputs = {"input_ids", "token_type_ids"};

using Predictor = std::shared_ptr<lite::PaddlePredictor>;

class Lite : public Engine {
 public:
  Lite(std::vector<Predictor> groups, const Model& model)
      : groups_(std::move(groups)), model_(model) {}

  std::vector<float> run(size_t group, const Batch& batch,
                         const std::vector<float>& state) override {
    auto& predictor = *groups_[group];
    const auto texts = static_cast<int64_t>(batch.texts);
    const auto length = static_cast<int64_t>(batch.length);
    const auto width = static_cast<int64_t>(model_.width);
    if (group == 0) {
      set(predictor, 0, {texts, length}, batch.input_ids);
      set(predictor, 1, {texts, length}, batch.token_type_ids);
    } else {
      set(predictor, 0, {texts, length, width}, state);
      set(predictor, 1, {texts, length}, batch.input_ids);
    }
    predictor.Run();
    const auto answer = predictor.GetOutput(0);
    const auto outputs = static_cast<int64_t>(model_.outputs);
    lite::shape_t wanted = {texts, outputs};
    if (model_.per_token) wanted = {texts, length, outputs};
    if (group + 1 < groups_.size()) wanted = {texts, length, width};
    if (answer->shape() != wanted) throw std::runtime_error("the model's answer has the wrong shape");
    const auto* data = answer->data<float>();
    size_t count = 1;
    for (const auto size : wanted) count *= static_cast<size_t>(size);
    return {data, data + count};
  }

  std::string version() const override { return groups_[0]->GetVersion(); }

 private:
  template <typename Value>
  static void set(lite::PaddlePredictor& predictor, int number, const lite::shape_t& shape,
                  const std::vector<Value>& values) {
    const auto tensor = predictor.GetInput(number);
    tensor->Resize(shape);
    std::copy(values.begin(), values.end(), tensor->mutable_data<Value>());
  }

  std::vector<Predictor> groups_;
  Model model_;
};

Predictor open_group(const std::filesystem::path& path, bool is_first, int threads,
                     const std::string& power_mode) {
  const auto& modes = power_modes();
  const auto mode = std::find(modes.begin(), modes.end(), power_mode) - modes.begin();
  lite::MobileConfig config;
  config.set_model_from_file(path.string());
  config.set_threads(threads);
  config.set_power_mode(static_cast<lite::PowerMode>(mode));
#if !defined(__aarch64__) && !defined(__arm__)
  config.set_x86_math_num_threads(threads);
#endif
  Predictor predictor;
  try {
    predictor = lite::CreatePaddlePredictor<lite::MobileConfig>(config);
  } catch (const std::exception& error) {
    throw UserError(path.string() + " cannot be opened by Paddle Lite (" + error.what() +
                    "); use the library of the version that converted it");
  }
  if (predictor != nullptr) {
    const auto names = predictor->GetInputNames();
    // Later groups take the hidden states, whose name is the model's own, and the ids.
    if (is_first ? names == kInputs : names.size() == 2 && names[1] == kInputs[0]) {
      return predictor;
    }
  }
  throw UserError(path.string() + " is not a model that fleetbert exported; export it again");
}

}  // namespace

std::unique_ptr<Engine> open_lite(const Model& model, int threads, const std::string& power_mode) {
  std::vector<Predictor> groups;
  for (const auto& path : model.groups) {
    groups.push_back(open_group(path, groups.empty(), threads, power_mode));
  }
  return std::make_unique<Lite>(std::move(groups), model);
}

}  // namespace fleetbert
