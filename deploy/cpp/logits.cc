// Logits of a bundle's float32 program, by the C++ API that PaddlePaddle's wheel has (paddle::jit).
//
//   logits BUNDLE/float32/model < ids.txt
//
// Each line of the input is a text: its token ids, special tokens included, with blanks between them.
// Each line of the output has its logits. README.md has the line that builds the program.

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "paddle/extension.h"
#include "paddle/jit/layer.h"
#include "paddle/jit/serializer.h"

namespace {

constexpr int64_t kPad = 0;  // the id of [PAD]: see `tokenizer` in the manifest

std::vector<std::vector<int64_t>> ReadTexts(std::istream& input) {
  std::vector<std::vector<int64_t>> texts;
  for (std::string line; std::getline(input, line);) {
    std::istringstream words(line);
    texts.emplace_back(std::istream_iterator<int64_t>(words), std::istream_iterator<int64_t>());
  }
  return texts;
}

// int64 [texts, length], all of them kPad.
paddle::Tensor Padding(int64_t texts, int64_t length) {
  return paddle::full({texts, length}, kPad, paddle::DataType::INT64, paddle::CPUPlace());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: logits BUNDLE/float32/model < ids.txt\n";
    return 2;
  }
  const std::string model = argv[1];
  for (const char* ending : {".pdmodel", ".pdiparams"}) {  // Paddle ends where one is missing
    if (!std::ifstream(model + ending)) {
      std::cerr << "there is no " << model << ending << "; name BUNDLE/float32/model\n";
      return 1;
    }
  }
  const auto texts = ReadTexts(std::cin);
  size_t longest = 0;
  for (const auto& text : texts) longest = std::max(longest, text.size());
  if (longest == 0) return 0;

  try {
    auto ids = Padding(texts.size(), longest);  // before Load: the first tensor sets Paddle up
    const auto types = Padding(texts.size(), longest);  // 0: the first text of a pair
    for (size_t row = 0; row < texts.size(); ++row) {
      std::copy(texts[row].begin(), texts[row].end(), ids.data<int64_t>() + row * longest);
    }
    auto program = paddle::jit::Load(model, paddle::CPUPlace());
    const auto logits = program.forward(std::vector<paddle::Tensor>{ids, types})[0];
    const int64_t width = logits.numel() / texts.size();
    for (size_t row = 0; row < texts.size(); ++row) {
      for (int64_t label = 0; label < width; ++label) {
        std::cout << (label ? " " : "") << logits.data<float>()[row * width + label];
      }
      std::cout << "\n";
    }
  } catch (const std::exception& error) {
    std::cerr << model << ": " << error.what() << "\n";
    return 1;
  }
}
