// Token ids of texts, for the tests: fleetbert-lite-tokens FILE BUNDLE|lower|cased|unigram
// MAX_LENGTH, where FILE is a vocabulary, of Unigram unigram.safetensors, and BUNDLE a folder whose
// manifest has the settings.
// Each line of standard input is a JSON string, or a list of two; each line of the output its ids.
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bundle.h"
#include "unigram.h"

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    const std::string how(argv[2]);
    std::unique_ptr<fleetbert::Tokenizer> tokenizer;
    if (how == "unigram") {
      tokenizer = std::make_unique<fleetbert::Unigram>(argv[1]);
    } else {
      std::ifstream file(argv[1], std::ios::binary);
      std::stringstream vocab;
      vocab << file.rdbuf();
      fleetbert::WordPieceSettings settings;
      settings.lowercase = settings.strip_accents = how == "lower";
      if (how != "lower" && how != "cased") settings = fleetbert::read_bundle(how).wordpiece;
      tokenizer = std::make_unique<fleetbert::WordPiece>(vocab.str(), argv[1], settings);
    }
    const auto max_length = static_cast<size_t>(std::stoul(argv[3]));
    for (std::string line; std::getline(std::cin, line);) {
      const auto text = nlohmann::json::parse(line);
      const auto encoding =
          text.is_array() ? tokenizer->encode(std::string(text[0]), std::string(text[1]), max_length)
                          : tokenizer->encode(std::string(text), max_length);
      std::cout << encoding.first_length << ' ' << encoding.truncated;
      for (const auto id : encoding.ids) std::cout << ' ' << id;
      std::cout << '\n';
    }
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 2;
  }
}
