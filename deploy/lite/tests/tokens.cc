// Token ids of texts, for the tests: fleetbert-lite-tokens VOCAB BUNDLE|lower|cased
// MAX_LENGTH, where BUNDLE is a folder whose manifest has the settings.
// Each line of standard input is a JSON string, or a list of two; each line of the output its ids.
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bundle.h"
#include "tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    std::ifstream file(argv[1], std::ios::binary);
    std::stringstream vocab;
    vocab << file.rdbuf();
    const std::string settings(argv[2]);
    fleetbert::TokenizerSettings how;
    how.lowercase = how.strip_accents = settings == "lower";
    if (settings != "lower" && settings != "cased") how = fleetbert::read_bundle(settings).tokenizer;
    const fleetbert::Tokenizer tokenizer(vocab.str(), argv[1], how);
    const auto max_length = static_cast<size_t>(std::stoul(argv[3]));
    for (std::string line; std::getline(std::cin, line);) {
      const auto text = nlohmann::json::parse(line);
      const auto encoding =
          text.is_array() ? tokenizer.encode(std::string(text[0]), std::string(text[1]), max_length)
                          : tokenizer.encode(std::string(text), max_length);
      std::cout << encoding.first_length << ' ' << encoding.cut;
      for (const auto id : encoding.ids) std::cout << ' ' << id;
      std::cout << '\n';
    }
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 2;
  }
}
