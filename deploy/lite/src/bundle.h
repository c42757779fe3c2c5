// A bundle as fleetbert writes it: manifest.json, the tokenizer's file and a folder for each variant.
// A board needs only the variants that it runs, and vocab.txt; of other tokenizers the variants have
// what it needs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "windows.h"
#include "wordpiece.h"

namespace fleetbert {

struct File {
  std::string path;  // from the bundle's root
  std::string sha256;
  uint64_t size = 0;
};

// A variant for Paddle Lite.
struct Variant {
  std::string name;       // lite-armv8-int8, ...
  std::string target;     // what it runs on: armv8, armv7 or x86
  std::string precision;  // float32, float16, int16, int8 or static-int8
  std::string converter;  // the version of Paddle Lite that converted it
  bool early_exit = false;  // whether texts may leave it early: src/exits.h
  std::vector<File> files;
};

// What a bundle answers, as fleetbert/tasks has it.
enum class Kind { kLabel, kLabels, kNumber, kVector, kSpans, kAnswer };

struct Bundle {
  std::filesystem::path root;
  Kind kind = Kind::kLabel;
  std::string task;   // its name
  bool pair = false;  // whether it answers pairs of texts
  std::vector<std::string> labels;
  std::vector<int64_t> integers;   // the labels where answers in JSON have integers; else none
  // Of kLabels: the probability above which a text has each; of kAnswer: of no answer, its label.
  std::vector<double> thresholds;
  size_t outputs = 0;  // numbers that the model gives for a text, or for a token
  size_t max_length = 0;
  LongTexts long_texts;  // what becomes of texts with more tokens
  bool is_wordpiece = true;     // else Unigram, in the variants
  WordPieceSettings wordpiece;  // if it is
  std::string vocab_sha256;     // if it is
  std::vector<Variant> variants;

  // Whether the model's outputs are of tokens, and answers have characters of the text.
  bool per_token() const { return kind == Kind::kSpans || kind == Kind::kAnswer; }
  std::filesystem::path vocab_path() const { return root / "vocab.txt"; }
  std::filesystem::path path_of(const File& file) const {
    return root / std::filesystem::u8path(file.path);
  }
};

// The target of this program: armv8, armv7 or x86.
std::string_view this_target();

// Reads manifest.json. Throws UserError.
Bundle read_bundle(const std::filesystem::path& root);

// The variant of that name, or the only one for this processor where `name` is empty. Throws
// UserError, also for a variant of another processor: its program would answer nonsense.
const Variant& choose_variant(const Bundle& bundle, std::string_view name);

// Where the variant's file of that name is. Throws UserError where it has none.
std::filesystem::path file_of(const Bundle& bundle, const Variant& variant,
                              const std::string& name);

// Checks sizes and hashes of the variant's files. Throws UserError that names the wrong one.
void verify_files(const Bundle& bundle, const Variant& variant);

// The tokenizer, its file's hash checked (of Unigram's: `verify_files`). Throws UserError.
std::unique_ptr<Tokenizer> open_tokenizer(const Bundle& bundle, const Variant& variant);

}  // namespace fleetbert
