#include "tokenizer.h"

#include <algorithm>
#include <cstddef>

#include "error.h"

namespace fleetbert {
namespace {

constexpr size_t kWhole = size_t{1} << 30;  // tokens: no text has more
constexpr size_t kCounted = 1 << 12;  // COUNTED of fleetbert/data/tokenizers/base.py

void append(const std::vector<int64_t>& from, std::vector<int64_t>& to) {
  to.insert(to.end(), from.begin(), from.end());
}

// Leaves `room` tokens of a text that has as many or more.
template <typename Token>
void cut(std::vector<Token>& tokens, size_t room, bool left) {
  const auto lost = static_cast<std::ptrdiff_t>(tokens.size() - room);
  if (left) {
    tokens.erase(tokens.begin(), tokens.begin() + lost);
  } else {
    tokens.erase(tokens.end() - lost, tokens.end());
  }
}

std::vector<int64_t> ids_of(const std::vector<Piece>& pieces) {
  std::vector<int64_t> ids;
  for (const auto& piece : pieces) ids.push_back(piece.id);
  return ids;
}

}  // namespace

size_t Tokenizer::special_tokens(bool pair) const {
  return template_.before.size() + template_.after.size() + (pair ? template_.between.size() : 0);
}

std::vector<Piece> Tokenizer::pieces_with_characters(std::string_view) const {
  throw UserError("the characters of tokens are known with WordPiece only here: serve this model "
                  "with fleetbert serve");
}

Encoding Tokenizer::encode(std::string_view text, size_t max_length) const {
  return finish(pieces(text), max_length);
}

Encoding Tokenizer::encode_with_pieces(std::string_view text, size_t max_length) const {
  auto found = pieces_with_characters(text);
  auto encoding = finish(ids_of(found), max_length);
  cut(found, encoding.ids.size() - special_tokens(false), template_.left);
  encoding.pieces = std::move(found);
  return encoding;
}

Encoding Tokenizer::finish(std::vector<int64_t> found, size_t max_length) const {
  Encoding encoding;
  const auto room = max_length - special_tokens(false);
  encoding.truncated = found.size() > room;
  if (encoding.truncated) cut(found, room, template_.left);
  encoding.ids.reserve(found.size() + special_tokens(false));
  append(template_.before, encoding.ids);
  append(found, encoding.ids);
  append(template_.after, encoding.ids);
  encoding.first_length = encoding.ids.size();
  return encoding;
}

Encoding Tokenizer::encode_whole(std::string_view text, bool with_pieces) const {
  auto encoding = with_pieces ? encode_with_pieces(text, kWhole) : encode(text, kWhole);
  encoding.first = template_.before.size();
  encoding.last = encoding.ids.size() - template_.after.size();
  return encoding;
}

Encoding Tokenizer::encode_whole(std::string_view first, std::string_view second,
                                 size_t max_length) const {
  auto a = pieces(first), b = pieces(second);
  const auto room = max_length - special_tokens(true);
  const bool is_second = b.size() >= a.size();
  auto& shorter = is_second ? a : b;
  const bool truncated = a.size() + b.size() > room && shorter.size() > room / 2;
  if (truncated) cut(shorter, room / 2, template_.left);
  const auto end_of_a = template_.before.size() + a.size();
  auto encoding = join(a, b);
  encoding.truncated = truncated;
  encoding.first = is_second ? end_of_a + template_.between.size() : template_.before.size();
  encoding.last = is_second ? encoding.ids.size() - template_.after.size() : end_of_a;
  return encoding;
}

Encoding Tokenizer::encode_question(std::string_view question, std::string_view context,
                                    size_t max_length) const {
  auto kept = pieces(question);
  auto found = pieces_with_characters(context);
  const auto room = (max_length - special_tokens(true)) / 2;
  const bool truncated = kept.size() > room;
  if (truncated) cut(kept, room, template_.left);
  auto encoding = join(kept, ids_of(found));
  encoding.truncated = truncated;
  encoding.first = template_.before.size() + kept.size() + template_.between.size();
  encoding.last = encoding.first + found.size();
  encoding.pieces = std::move(found);
  return encoding;
}

Encoding Tokenizer::encode(std::string_view first, std::string_view second,
                           size_t max_length) const {
  auto a = pieces(first), b = pieces(second);
  const auto room = max_length - special_tokens(true);
  const bool truncated = a.size() + b.size() > room;
  if (truncated) {
    const auto beside_a = room > a.size() ? room - a.size() : 0;
    const auto most = std::max(max_length + 1, kCounted);
    const auto odd = std::min(b.size(), most) >= std::min(a.size(), most) ? room % 2 : 0;
    const auto kept = std::min(b.size(), std::max(beside_a, room / 2 + odd));
    cut(b, kept, template_.left);
    cut(a, room - kept, template_.left);
  }
  auto encoding = join(a, b);
  encoding.truncated = truncated;
  return encoding;
}

Encoding Tokenizer::join(const std::vector<int64_t>& a, const std::vector<int64_t>& b) const {
  Encoding encoding;
  encoding.ids.reserve(a.size() + b.size() + special_tokens(true));
  append(template_.before, encoding.ids);
  append(a, encoding.ids);
  encoding.first_length = encoding.ids.size() + template_.in_first;
  append(template_.between, encoding.ids);
  append(b, encoding.ids);
  append(template_.after, encoding.ids);
  if (template_.one_type) encoding.first_length = encoding.ids.size();
  return encoding;
}

}  // namespace fleetbert
