// Mutated requests and manifests, best under the sanitizers: fleetbert-lite-fuzz BUNDLE SECONDS SEED
// Whatever is sent, only UserError and Failure may come out.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>

#include "classifier.h"
#include "error.h"
#include "oip.h"

namespace {

using namespace fleetbert;

const std::vector<std::string> kSeeds = {
    R"({"inputs":[{"name":"text","shape":[2],"datatype":"BYTES","data":["good word1","é字"]}]})",
    R"({"id":"a","parameters":{"timeout":1000,"binary_data_output":true},"inputs":[)"
    R"({"name":"input_ids","shape":[2,3],"datatype":"INT64","data":[[1,2,3],[4,5,0]]},)"
    R"({"name":"token_type_ids","shape":[2,3],"datatype":"INT32","data":[0,0,1,0,1,1]}],)"
    R"("outputs":[{"name":"logits","parameters":{"binary_data":false}},{"name":"label"}]})",
    std::string(R"({"inputs":[{"name":"text","shape":[1],"datatype":"BYTES",)"
                R"("parameters":{"binary_data_size":7}}]})") +
        std::string("\x03\0\0\0abc", 7),
};
const std::vector<std::string> kPieces = {
    "[", "]", "{", "}", "\"", ",", ":", "-1", "0", "1e400", "18446744073709551616", "null", "true",
    "\\ud800", "\xff", "[[[[[[[[", "\"data\":", "\"shape\":[", "9223372036854775808", "\\u0000"};

std::string mutated(std::string text, const std::vector<std::string>& others, std::mt19937& random) {
  const auto below = [&](size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(random); };
  for (auto times = below(6) + 1; times > 0 && !text.empty(); --times) {
    const auto at = below(text.size());
    switch (below(6)) {
      case 0: text[at] = static_cast<char>(below(256)); break;
      case 1: text.erase(at, below(16) + 1); break;
      case 2: text.insert(at, kPieces[below(kPieces.size())]); break;
      case 3: text.insert(at, text.substr(below(text.size()), below(64))); break;
      case 4: text.resize(at); break;
      default: {
        const auto& other = others[below(others.size())];
        text = text.substr(0, at) + other.substr(below(other.size()));
      }
    }
  }
  return text;
}

std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::filesystem::path bundle = argv[1];
  std::mt19937 random(static_cast<unsigned>(std::stoul(argv[3])));
  EngineOptions options;
  options.engine = "fake";
  const auto classifier = Classifier::open(bundle, "", options);
  const auto manifest = read_all(bundle / "manifest.json");
  const auto copy = std::filesystem::temp_directory_path() /
                    ("fleetbert-fuzz-" + std::to_string(std::random_device{}()));
  std::filesystem::create_directory(copy);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::stol(argv[2]));
  size_t requests = 0, answered = 0, manifests = 0, read = 0;
  while (std::chrono::steady_clock::now() < end) {
    for (int i = 0; i < 200; ++i, ++requests) {
      const auto body = mutated(kSeeds[random() % kSeeds.size()], kSeeds, random);
      const auto length = random() % 3 ? std::optional<std::string>() : std::to_string(random() % 130);
      try {
        const auto question = read_question(body, length, *classifier, Limits{});
        std::vector<const Row*> rows;
        for (const auto& row : question.rows) rows.push_back(&row);
        render(question, classifier->answer(rows), *classifier, "model");
        ++answered;
      } catch (const Failure& failure) {
        error_body(failure.what());
      }
    }
    for (int i = 0; i < 20; ++i, ++manifests) {
      std::ofstream(copy / "manifest.json", std::ios::binary) << mutated(manifest, {manifest}, random);
      try {
        const auto found = read_bundle(copy);
        verify_model(found, choose_variant(found, ""));
      } catch (const UserError&) {
        ++read;
      }
    }
  }
  std::filesystem::remove_all(copy);
  std::cout << requests << " requests, " << answered << " of them answered; " << manifests
            << " manifests, " << read << " of them refused\n";
}
