// The words of a text, which are what is tagged: as fleetbert/data/words.py finds them.
#pragma once

#include <cstddef>
#include <vector>

#include "tokenizer.h"
#include "unicode.h"

namespace fleetbert {

// token: the first of its tokens; begin, end: its characters.
struct Word {
  size_t token = 0, begin = 0, end = 0;
};

// Where the words of a text begin and end (`token` is not set).
std::vector<Word> find_words(const std::vector<CodePoint>& text);

// Those of them that have tokens. before: special tokens before the pieces. A token that has
// characters of several words makes one of them.
std::vector<Word> words_of(const std::vector<CodePoint>& text, const std::vector<Piece>& pieces,
                           size_t before);

// Tokens that have characters, each as a word of these without blanks before and with the marks that
// follow: tokenizers strip accents. before: tokens before the pieces.
std::vector<Word> tokens_of(const std::vector<CodePoint>& text, const std::vector<Piece>& pieces,
                            size_t before);

}  // namespace fleetbert
