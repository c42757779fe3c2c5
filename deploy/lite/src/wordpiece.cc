#include "wordpiece.h"

#include <algorithm>
#include <utility>

#include "error.h"

namespace fleetbert {
namespace {

constexpr size_t kLongestWord = 100;  // characters; a longer word is [UNK]
constexpr std::string_view kContinued = "##";

// What BertNormalizer makes of a text. from: to be filled with the character of the text that each
// comes from.
std::vector<CodePoint> normalize(const std::vector<CodePoint>& characters,
                                 const WordPieceSettings& settings,
                                 std::vector<size_t>* from = nullptr) {
  std::vector<CodePoint> out;
  out.reserve(characters.size());
  for (size_t at = 0; at < characters.size(); ++at) {
    const auto character = characters[at];
    if (from != nullptr) from->resize(out.size(), at - 1);
    if (settings.clean_text) {
      if (character == 0 || character == 0xFFFD || is_control(character)) continue;
      if (is_whitespace(character)) {
        out.push_back(' ');
        continue;
      }
    }
    if (settings.tokenize_chinese_chars && is_chinese(character)) {
      out.insert(out.end(), {' ', character, ' '});
    } else {
      out.push_back(character);
    }
  }
  if (from != nullptr) from->resize(out.size(), characters.size() - 1);
  if (settings.strip_accents) out = strip_accents(out, from);
  return settings.lowercase ? lower(out, from) : out;
}

std::string trim_line_end(std::string text, const char* ends) {
  text.erase(text.find_last_not_of(ends) + 1);
  return text;
}

}  // namespace

WordPiece::WordPiece(const std::string& vocab, const std::filesystem::path& path,
                     WordPieceSettings settings)
    : settings_(std::move(settings)) {
  if (!is_utf8(vocab)) {
    throw UserError(path.string() + ": the vocabulary is not UTF-8 text; give BERT's vocab.txt");
  }
  if (const auto nul = vocab.find('\0'); nul != std::string::npos) {
    const auto line = 1 + std::count(vocab.begin(), vocab.begin() + static_cast<long>(nul), '\n');
    throw UserError(path.string() + ":" + std::to_string(line) +
                    ": the vocabulary holds a NUL character; is the file text?");
  }
  const bool has_mark = vocab.rfind("\xEF\xBB\xBF", 0) == 0;
  const auto text = trim_line_end(has_mark ? vocab.substr(3) : vocab, "\r\n");
  std::unordered_map<std::string, size_t> lines;
  for (size_t position = 0; position <= text.size(); ++size_) {
    const auto end = std::min(text.find('\n', position), text.size());
    const auto token = trim_line_end(text.substr(position, end - position), "\r");
    position = end + 1;
    const auto [found, is_new] = lines.emplace(token, size_);
    if (!is_new) {
      throw UserError(path.string() + ":" + std::to_string(size_ + 1) + ": the token '" + token +
                      "' is in line " + std::to_string(found->second + 1) +
                      " already; a vocabulary has each token once");
    }
    longest_ = std::max(longest_, token.size());
    const auto id = static_cast<int64_t>(size_);
    if (token.rfind(kContinued, 0) == 0) {
      continued_.emplace(token.substr(kContinued.size()), id);
    } else {
      starts_.emplace(token, id);
    }
  }
  const auto special = [&](const std::string& token) {
    const auto found = starts_.find(token);
    if (found == starts_.end()) {
      throw UserError(path.string() + ": the vocabulary lacks " + token +
                      "; give BERT's vocab.txt");
    }
    return found->second;
  };
  pad_ = special(settings_.pad);
  unknown_ = special(settings_.unknown);
  const auto first = special(settings_.first), separator = special(settings_.separator);
  template_ = {{first}, {separator}, {separator}, 1, settings_.one_type,
               settings_.left};
}

std::vector<int64_t> WordPiece::pieces(std::string_view text) const {
  std::vector<int64_t> ids;
  for (const auto& piece : split(normalize(decode_utf8(text), settings_))) ids.push_back(piece.id);
  return ids;
}

std::vector<Piece> WordPiece::pieces_with_characters(std::string_view text) const {
  std::vector<size_t> from;
  auto found = split(normalize(decode_utf8(text), settings_, &from));
  for (auto& piece : found) {
    piece.begin = from[piece.begin];
    piece.end = from[piece.end - 1] + 1;
  }
  return found;
}

std::vector<Piece> WordPiece::split(const std::vector<CodePoint>& text) const {
  std::vector<Piece> found;
  std::string word;
  size_t begin = 0;
  const auto end_word = [&](size_t end) {
    if (end - begin > kLongestWord) {
      found.push_back({unknown_, begin, end});
    } else if (end > begin) {
      add_word(word, begin, end, found);
    }
    word.clear();
    begin = end;
  };
  for (size_t at = 0; at < text.size(); ++at) {
    if (is_whitespace(text[at])) {
      end_word(at);
      begin = at + 1;
    } else if (is_punctuation(text[at])) {
      end_word(at);
      append_utf8(text[at], word);
      end_word(at + 1);
    } else {
      append_utf8(text[at], word);
    }
  }
  end_word(text.size());
  return found;
}

void WordPiece::add_word(const std::string& word, size_t begin, size_t end,
                         std::vector<Piece>& found) const {
  const auto before = found.size();
  const auto first = begin;
  for (size_t start = 0; start < word.size();) {
    const auto& tokens = start == 0 ? starts_ : continued_;
    size_t length = std::min(longest_, word.size() - start);
    for (; length > 0; --length) {
      const auto stop = start + length;
      // Not in the middle of a character.
      if (stop < word.size() && (static_cast<unsigned char>(word[stop]) & 0xC0) == 0x80) continue;
      const auto token = tokens.find(word.substr(start, length));
      if (token == tokens.end()) continue;
      const auto characters = std::count_if(
          word.begin() + static_cast<std::ptrdiff_t>(start),
          word.begin() + static_cast<std::ptrdiff_t>(stop),
          [](char one) { return (static_cast<unsigned char>(one) & 0xC0) != 0x80; });
      found.push_back({token->second, begin, begin + static_cast<size_t>(characters)});
      begin = found.back().end;
      break;
    }
    if (length == 0) {  // no token fits: the whole word is unknown
      found.resize(before);
      found.push_back({unknown_, first, end});
      return;
    }
    start += length;
  }
}

}  // namespace fleetbert
