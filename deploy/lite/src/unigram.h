// Unigram (Kudo 2018) with the ids of Hugging Face `tokenizers`, as CamemBERT, XLM-RoBERTa and E5
// use it: of all ways to spell a word in pieces, the one whose pieces' scores sum up highest.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "normalizer.h"
#include "tokenizer.h"

namespace fleetbert {

class Unigram : public Tokenizer {
 public:
  // unigram.safetensors of a variant, which fleetbert/export/lite_unigram.py writes. Throws
  // UserError.
  explicit Unigram(const std::filesystem::path& path);

 private:
  // A token that is found whole in texts. special: its place in a text stays ordinary characters.
  struct Added {
    std::string text;
    int64_t id = 0;
    bool special = false, left = false, right = false;  // takes the spaces beside it
  };
  struct AddedTokens {
    std::array<std::vector<Added>, 256> by_first_byte;  // the longest first
    bool empty = true;
  };
  // How a text is split into words, one step after the other.
  struct Split {
    bool metaspace = false;  // else at whitespace
    std::string replacement;
    bool prepend = false, split = false;
  };
  // A part of a text, or a token that was found whole.
  struct Part {
    std::string_view text;
    std::optional<int64_t> id;
  };

  explicit Unigram(const TensorFile& file);
  void read_added(const Reader& entries);
  std::vector<int64_t> pieces(std::string_view text) const override;
  static std::vector<Part> find_added(std::string_view text, const AddedTokens& tokens);
  std::vector<std::string> words(const std::string& text) const;
  void add_word(std::string_view word, std::vector<int64_t>& ids) const;

  std::string_view piece(size_t number) const {
    const size_t start = number == 0 ? 0 : ends_[number - 1];
    return std::string_view(text_).substr(start, ends_[number] - start);
  }
  // The pieces that begin a text, the shortest first: their numbers and lengths.
  void each_beginning(std::string_view text,
                      const std::function<void(size_t, size_t)>& found) const;

  std::string text_;            // the pieces one after the other, in ascending order
  std::vector<uint32_t> ends_;  // of each
  std::vector<double> scores_;
  std::vector<uint32_t> ids_;
  std::array<size_t, 257> first_bytes_{};  // number of the first piece with this first byte
  Normalizer normalizer_;
  std::vector<Split> splits_;
  std::array<AddedTokens, 2> added_;  // before and after normalization
  double unknown_score_ = 0;
  int64_t unknown_ = 0;      // the model's
  int64_t replacement_ = 0;  // what stands for tokens that no text may spell
  std::unordered_set<int64_t> never_;
};

}  // namespace fleetbert
