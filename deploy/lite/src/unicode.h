// Characters as Hugging Face `tokenizers` sees them, over the library utf8proc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fleetbert {

using CodePoint = int32_t;

// The characters of UTF-8 text. Throws std::invalid_argument where it is not UTF-8.
std::vector<CodePoint> decode_utf8(std::string_view text);

// Adds a character's UTF-8 to `text`.
void append_utf8(CodePoint character, std::string& text);

// The UTF-8 of the characters from `begin` to `end`.
std::string encode_utf8(const std::vector<CodePoint>& characters, size_t begin, size_t end);

// Whether text is UTF-8 that decode_utf8 takes.
bool is_utf8(std::string_view text);

// Why UTF-8 text is none to answer, as the end of a sentence, or nothing: fault_of of
// fleetbert/data/written.py.
std::string fault_of(std::string_view text);

bool is_whitespace(CodePoint character);   // Unicode's White_Space
bool is_blank(CodePoint character);        // Python's isspace(): four separators more
bool is_alphanumeric(CodePoint character);  // a letter or a number of any kind
bool is_mark(CodePoint character);         // of any kind
bool is_control(CodePoint character);      // Cc, Cf and Co, but tab and line ends
bool is_punctuation(CodePoint character);  // Unicode's P*, and all such of ASCII ($ + < ...)
bool is_chinese(CodePoint character);      // one that BERT makes a word of its own

// Canonical decomposition without non-spacing marks: "É" becomes "E". from: where each character of
// `text` comes from, which becomes that of the result, as `tokenizers` tells it.
std::vector<CodePoint> strip_accents(const std::vector<CodePoint>& text,
                                     std::vector<size_t>* from = nullptr);

// Unicode's normalization forms: NFC, NFD, NFKC, NFKD.
std::vector<CodePoint> normal_form(const std::vector<CodePoint>& text, bool compatible,
                                   bool composed);

// Where the graphemes (what a reader takes for one character) of a text end, ascending.
std::vector<size_t> grapheme_ends(const std::vector<CodePoint>& text);

// In lower case, each character for itself. from: as of strip_accents.
std::vector<CodePoint> lower(const std::vector<CodePoint>& text,
                             std::vector<size_t>* from = nullptr);

}  // namespace fleetbert
