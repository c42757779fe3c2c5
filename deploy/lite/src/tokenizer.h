// Texts to token ids: what each kind of tokenizer offers.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace fleetbert {

// A token, and the characters of its text that it stands for.
struct Piece {
  int64_t id = 0;
  size_t begin = 0, end = 0;
};

// Token ids of a text or pair, special tokens included.
struct Encoding {
  std::vector<int64_t> ids;
  size_t first_length = 0;  // how many tokens belong to segment 0
  size_t first = 0, last = 0;  // of a whole text: where the tokens begin and end that are divided
  std::vector<Piece> pieces;  // of a text or context without special tokens, where asked for
  bool truncated = false;         // whether tokens were left out to keep max_length
};

// The special tokens before a text, between the two of a pair, and after.
struct Template {
  std::vector<int64_t> before, between, after;
  size_t in_first = 1;    // how many of those between are of segment 0
  bool one_type = false;  // everything is of segment 0
  bool left = false;      // texts that are too long lose their beginning
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // At most max_length tokens, which has to leave room for `special_tokens`. Both texts of a pair
  // get half of that, and what one leaves the other may take; the odd token goes to the longer
  // text, to the second where both are equally long. Throws std::invalid_argument where a text is
  // not UTF-8. Safe to call from several threads.
  Encoding encode(std::string_view text, size_t max_length) const;
  Encoding encode(std::string_view first, std::string_view second, size_t max_length) const;

  // The same of one text, with `Encoding::pieces`.
  Encoding encode_with_pieces(std::string_view text, size_t max_length) const;

  // All tokens of a text; of a pair with more than max_length tokens the shorter text is cut to
  // half of the room, and the longer one is divided. `Encoding::first` and `last` are set.
  Encoding encode_whole(std::string_view text, bool with_pieces) const;
  Encoding encode_whole(std::string_view first, std::string_view second, size_t max_length) const;

  // A question, cut to half of the room of max_length tokens, and all tokens of a context, which is
  // divided, with its `Encoding::pieces`: as fleetbert/data/contexts.py has it.
  Encoding encode_question(std::string_view question, std::string_view context,
                           size_t max_length) const;

  size_t special_tokens(bool pair) const;
  size_t specials_before() const { return template_.before.size(); }
  size_t vocab_size() const { return size_; }
  int64_t pad_id() const { return pad_; }

 protected:
  Template template_;
  size_t size_ = 0;
  int64_t pad_ = 0;

 private:
  // Ids of a text without special tokens.
  virtual std::vector<int64_t> pieces(std::string_view text) const = 0;
  // With their characters. Throws UserError where the kind does not know them.
  virtual std::vector<Piece> pieces_with_characters(std::string_view text) const;
  Encoding finish(std::vector<int64_t> found, size_t max_length) const;
  Encoding join(const std::vector<int64_t>& a, const std::vector<int64_t>& b) const;
};

}  // namespace fleetbert
