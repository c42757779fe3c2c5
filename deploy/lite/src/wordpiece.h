// BERT's WordPiece tokenizer, with the ids of Hugging Face `tokenizers` (BertNormalizer,
// BertPreTokenizer, WordPiece), which fleetbert trains with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer.h"
#include "unicode.h"

namespace fleetbert {

// How texts become tokens, where not as BERT's uncased models do it.
struct WordPieceSettings {
  bool lowercase = true;
  bool strip_accents = true;
  bool tokenize_chinese_chars = true;  // each is a word of its own
  bool clean_text = true;              // control characters are removed
  bool one_type = false;               // a pair's second text is of segment 0 too
  bool left = false;                   // texts that are too long lose their beginning
  std::string pad = "[PAD]", unknown = "[UNK]", first = "[CLS]", separator = "[SEP]";
};

// A text is [CLS] a [SEP], a pair [CLS] a [SEP] b [SEP].
class WordPiece : public Tokenizer {
 public:
  // `vocab` is the text of BERT's vocab.txt: one token a line, its id the line number from 0;
  // `path` is for messages. Throws UserError.
  WordPiece(const std::string& vocab, const std::filesystem::path& path,
            WordPieceSettings settings);

 private:
  using Ids = std::unordered_map<std::string, int64_t>;

  std::vector<int64_t> pieces(std::string_view text) const override;
  std::vector<Piece> pieces_with_characters(std::string_view text) const override;
  // Tokens of a normalized text, and the characters of that.
  std::vector<Piece> split(const std::vector<CodePoint>& text) const;
  void add_word(const std::string& word, size_t begin, size_t end, std::vector<Piece>& found) const;

  Ids starts_;     // tokens that begin a word
  Ids continued_;  // tokens that continue one, without their "##"
  size_t longest_ = 0;  // bytes of the longest of them
  WordPieceSettings settings_;
  int64_t unknown_ = 0;
};

}  // namespace fleetbert
