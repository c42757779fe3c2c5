// Mutated requests, manifests and vocabularies, best under the sanitizers:
// fleetbert-lite-fuzz BUNDLE SECONDS SEED
// Whatever is sent, only UserError and Failure may come out.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <stdexcept>

#include "classifier.h"
#include "error.h"
#include "oip.h"
#include "questions.h"

namespace {

using namespace fleetbert;
namespace fs = std::filesystem;

const std::vector<std::string> kRequests = {
    R"({"inputs":[{"name":"text","shape":[2],"datatype":"BYTES","data":["good word1","é字"]}]})",
    R"({"id":"a","parameters":{"timeout":1000,"binary_data_output":true},"inputs":[)"
    R"({"name":"input_ids","shape":[2,3],"datatype":"INT64","data":[[1,2,3],[4,5,0]]},)"
    R"({"name":"token_type_ids","shape":[2,3],"datatype":"INT32","data":[0,0,1,0,1,1]}],)"
    R"("outputs":[{"name":"logits","parameters":{"binary_data":false}},{"name":"label"}]})",
    R"({"inputs":{"question":"who?","context":"é word1\r\nword2 字"},"model":"model",)"
    R"("parameters":{"top_k":3,"handle_impossible_answer":true}})",
    std::string(R"({"inputs":[{"name":"text","shape":[1],"datatype":"BYTES",)"
                R"("parameters":{"binary_data_size":7}}]})") +
        std::string("\x03\0\0\0abc", 7),
};
const std::vector<std::string> kPieces = {
    "[", "]", "{", "}", "\"", ",", ":", "-1", "0", "1e400", "18446744073709551616", "null", "true",
    "\\ud800", "\xff", "[[[[[[[[", "\"data\":", "\"shape\":[", "9223372036854775808", "\\u0000",
    "../", "\"variants\":[", "\n", "\xcc\x81\xcc\xa3", "\xed\xa0\x80", "\xf4\x8f\xbf\xbf"};

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  size_t below(size_t end) {
    return std::uniform_int_distribution<size_t>(0, end - 1)(random_);
  }

  std::string operator()(std::string text, const std::vector<std::string>& others) {
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

 private:
  std::mt19937 random_;
};

std::string read_all(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Asks a classifier that is open what a mutated body asks; whether it was answered.
bool ask(Mutator& mutate, const Classifier& classifier) {
  const auto body = mutate(kRequests[mutate.below(kRequests.size())], kRequests);
  std::optional<std::string> length;
  if (mutate.below(3) == 0) length = std::to_string(mutate.below(130));
  try {
    if (classifier.bundle().kind == Kind::kAnswer && mutate.below(2) == 0) {
      const auto question = read_context_question(body, classifier, "model", Limits{});
      render(question, classifier.answer({&question.row})[0], classifier.bundle());
      return true;
    }
    const auto question = read_question(body, length, classifier, Limits{});
    std::vector<const Row*> rows;
    for (const auto& row : question.rows) rows.push_back(&row);
    render(question, classifier.answer(rows), classifier, "model");
    return true;
  } catch (const Failure& failure) {
    error_body(failure.what());
    return false;
  }
}

// Opens a bundle and asks it; whether it could be opened.
bool open_and_ask(Mutator& mutate, const fs::path& bundle, const EngineOptions& options) {
  try {
    const auto classifier = Classifier::open(bundle, "", options);
    model_metadata(*classifier, "model");
    ask(mutate, *classifier);
    return true;
  } catch (const UserError&) {
    return false;
  }
}

// Reads a vocabulary and encodes a text with it; whether both are what they should be.
bool encode(Mutator& mutate, const std::string& vocab, const std::string& text) {
  try {
    WordPieceSettings settings;
    settings.lowercase = mutate.below(2) == 0;
    const WordPiece tokenizer(vocab, "vocab.txt", settings);
    tokenizer.encode(text, 3 + mutate.below(30));
    tokenizer.encode(text, text, 3 + mutate.below(30));
    return true;
  } catch (const UserError&) {
    return false;
  } catch (const std::invalid_argument&) {  // the text is not UTF-8
    return false;
  }
}

struct Tally {
  size_t tried = 0, accepted = 0;
  void add(bool is_accepted) {
    ++tried;
    accepted += is_accepted;
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const fs::path bundle = argv[1];
  Mutator mutate(static_cast<unsigned>(std::stoul(argv[3])));
  EngineOptions options;
  options.engine = "fake";
  const auto classifier = Classifier::open(bundle, "", options);
  const auto manifest = read_all(bundle / "manifest.json");
  const auto vocab = read_all(bundle / "vocab.txt");
  const auto copy =
      fs::temp_directory_path() / ("fleetbert-fuzz-" + std::to_string(std::random_device{}()));
  fs::copy(bundle, copy, fs::copy_options::recursive);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::stol(argv[2]));
  Tally requests, bundles, vocabularies;
  while (std::chrono::steady_clock::now() < end) {
    for (int i = 0; i < 200; ++i) requests.add(ask(mutate, *classifier));
    for (int i = 0; i < 20; ++i) {
      std::ofstream(copy / "manifest.json", std::ios::binary) << mutate(manifest, {manifest});
      bundles.add(open_and_ask(mutate, copy, options));
    }
    for (int i = 0; i < 20; ++i) {
      const auto text = mutate(kRequests[0], kPieces);
      vocabularies.add(encode(mutate, mutate(vocab, {vocab}), text));
    }
  }
  fs::remove_all(copy);
  std::cout << requests.tried << " requests, " << requests.accepted << " of them answered; "
            << bundles.tried << " manifests, " << bundles.accepted << " of them opened; "
            << vocabularies.tried << " vocabularies, " << vocabularies.accepted
            << " of them taken\n";
}
