#include "words.h"

#include <algorithm>
#include <iterator>

namespace fleetbert {
namespace {

constexpr CodePoint kLastMark = 0x1FFFF;  // that goes with the character before it

// Scripts that are written without blanks: conll.py's SPACELESS.
bool is_spaceless(CodePoint one) {
  constexpr CodePoint kRanges[][2] = {
      {0x0E00, 0x0EFF}, {0x1000, 0x109F}, {0x1780, 0x17FF}, {0x3000, 0x30FF},   {0x3400, 0x4DBF},
      {0x4E00, 0x9FFF}, {0xF900, 0xFAFF}, {0xFF00, 0xFFEF}, {0x20000, 0x2FFFF}};
  return std::any_of(std::begin(kRanges), std::end(kRanges),
                     [one](const auto& range) { return range[0] <= one && one <= range[1]; });
}

// The last word that begins at a character or before it, from 0; 0 where none does.
size_t word_at(const std::vector<Word>& words, size_t character) {
  const auto after = std::upper_bound(
      words.begin(), words.end(), character,
      [](size_t wanted, const Word& word) { return wanted < word.begin; });
  return after == words.begin() ? 0 : static_cast<size_t>(after - words.begin()) - 1;
}

// Where what ends at a character ends with the marks that follow.
size_t with_marks(const std::vector<CodePoint>& text, size_t end) {
  while (end < text.size() && text[end] <= kLastMark && is_mark(text[end])) ++end;
  return end;
}

}  // namespace

std::vector<Word> find_words(const std::vector<CodePoint>& text) {
  std::vector<Word> words;
  size_t at = 0;
  const auto is_letter = [&] { return is_alphanumeric(text[at]) && !is_spaceless(text[at]); };
  while (at < text.size()) {
    if (is_blank(text[at])) {
      ++at;
      continue;
    }
    const auto begin = at;
    if (is_letter()) {
      while (at < text.size() && is_letter()) {
        at = with_marks(text, at + 1);
      }
    } else {
      at = with_marks(text, at + 1);
    }
    words.push_back({0, begin, at});
  }
  return words;
}

std::vector<Word> words_of(const std::vector<CodePoint>& text, const std::vector<Piece>& pieces,
                           size_t before) {
  const auto words = find_words(text);
  std::vector<Word> found;
  size_t reached = 0;  // the last word that tokens up to this one have
  for (size_t number = 0; number < pieces.size() && !words.empty(); ++number) {
    const auto& piece = pieces[number];
    if (piece.begin >= piece.end) continue;
    const auto first = word_at(words, piece.begin);
    const auto last = std::max(first, word_at(words, piece.end - 1));
    if (found.empty() || first > reached) {
      found.push_back({before + number, words[first].begin, words[first].end});
    }
    reached = std::max(reached, last);
    found.back().end = words[reached].end;
  }
  return found;
}

std::vector<Word> tokens_of(const std::vector<CodePoint>& text, const std::vector<Piece>& pieces,
                            size_t before) {
  std::vector<Word> found;
  for (size_t number = 0; number < pieces.size(); ++number) {
    auto [id, begin, end] = pieces[number];
    while (begin < end && is_blank(text[begin])) ++begin;
    if (begin < end) found.push_back({before + number, begin, with_marks(text, end)});
  }
  return found;
}

}  // namespace fleetbert
