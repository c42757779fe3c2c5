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

class Lite : public Engine {
 public:
  Lite(std::shared_ptr<lite::PaddlePredictor> predictor, size_t labels)
      : predictor_(std::move(predictor)), labels_(labels) {}

  std::vector<float> run(const Batch& batch) override {
    set(0, batch, batch.input_ids);
    set(1, batch, batch.token_type_ids);
    predictor_->Run();
    const auto logits = predictor_->GetOutput(0);
    const auto shape = logits->shape();
    const lite::shape_t wanted = {static_cast<int64_t>(batch.texts), static_cast<int64_t>(labels_)};
    if (shape != wanted) throw std::runtime_error("the model's answer has the wrong shape");
    const auto* data = logits->data<float>();
    return {data, data + batch.texts * labels_};
  }

  std::string version() const override { return predictor_->GetVersion(); }

 private:
  void set(int number, const Batch& batch, const std::vector<int64_t>& values) {
    const auto tensor = predictor_->GetInput(number);
    tensor->Resize({static_cast<int64_t>(batch.texts), static_cast<int64_t>(batch.length)});
    std::copy(values.begin(), values.end(), tensor->mutable_data<int64_t>());
  }

  std::shared_ptr<lite::PaddlePredictor> predictor_;
  size_t labels_;
};

}  // namespace

std::unique_ptr<Engine> open_lite(const std::filesystem::path& model, size_t labels, int threads,
                                  const std::string& power_mode) {
  const auto& modes = power_modes();
  const auto mode = std::find(modes.begin(), modes.end(), power_mode) - modes.begin();
  lite::MobileConfig config;
  config.set_model_from_file(model.string());
  config.set_threads(threads);
  config.set_power_mode(static_cast<lite::PowerMode>(mode));
#if !defined(__aarch64__) && !defined(__arm__)
  config.set_x86_math_num_threads(threads);
#endif
  std::shared_ptr<lite::PaddlePredictor> predictor;
  try {
    predictor = lite::CreatePaddlePredictor<lite::MobileConfig>(config);
  } catch (const std::exception& error) {
    throw UserError(model.string() + " cannot be opened by Paddle Lite (" + error.what() +
                    "); use the library of the version that converted it");
  }
  if (predictor == nullptr || predictor->GetInputNames() != kInputs) {
    throw UserError(model.string() + " is not a model that fleetbert exported; export it again");
  }
  return std::make_unique<Lite>(std::move(predictor), labels);
}

}  // namespace fleetbert
