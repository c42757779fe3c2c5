// BERT's WordPiece tokenizer, with the ids of Hugging Face `tokenizers` (BertNormalizer,
// BertPreTokenizer, WordPiece), which fleetbert trains with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fleetbert {

// Token ids of a text or pair: [CLS] a [SEP], for pairs [CLS] a [SEP] b [SEP].
struct Encoding {
  std::vector<int64_t> ids;
  size_t first_length = 0;  // how many tokens belong to segment 0, its [SEP] included
  bool cut = false;         // whether tokens were left out to keep max_length
};

// How texts become tokens, where not as BERT's uncased models do it.
struct TokenizerSettings {
  bool lowercase = true;
  bool strip_accents = true;
  bool tokenize_chinese_chars = true;  // each is a word of its own
  bool clean_text = true;              // control characters are removed
  bool one_type = false;               // a pair's second text is of segment 0 too
  std::string pad = "[PAD]", unknown = "[UNK]", first = "[CLS]", separator = "[SEP]";
};

class Tokenizer {
 public:
  // `vocab` is the text of BERT's vocab.txt: one token a line, its id the line number from 0;
  // `path` is for messages. Throws UserError.
  Tokenizer(const std::string& vocab, const std::filesystem::path& path,
            TokenizerSettings settings);

  // At most max_length tokens. Pairs are cut token by token from the longer text, from the second
  // where both are equally long. Throws std::invalid_argument where a text is not UTF-8.
  // Safe to call from several threads.
  Encoding encode(std::string_view text, size_t max_length) const;
  Encoding encode(std::string_view first, std::string_view second, size_t max_length) const;

  size_t vocab_size() const { return size_; }
  int64_t pad_id() const { return pad_; }

 private:
  using Ids = std::unordered_map<std::string, int64_t>;

  std::vector<int64_t> word_pieces(std::string_view text) const;
  void add_word(const std::string& word, std::vector<int64_t>& ids) const;

  Ids starts_;     // tokens that begin a word
  Ids continued_;  // tokens that continue one, without their "##"
  size_t longest_ = 0;  // bytes of the longest of them
  size_t size_ = 0;
  TokenizerSettings settings_;
  int64_t pad_ = 0, unknown_ = 0, first_ = 0, separator_ = 0;
};

}  // namespace fleetbert
