#include "sha256.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <vector>

#include "error.h"

namespace fleetbert {
namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::array<uint32_t, 64> kRounds = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

constexpr size_t kBlock = 64;

uint32_t rotated(uint32_t value, unsigned bits) { return (value >> bits) | (value << (32 - bits)); }

class Hash {
 public:
  void add(const char* data, size_t size) {
    total_ += size;
    while (size > 0) {
      const auto taken = std::min(size, kBlock - filled_);
      std::memcpy(block_.data() + filled_, data, taken);
      filled_ += taken;
      data += taken;
      size -= taken;
      if (filled_ == kBlock) mix();
    }
  }

  std::string hexadecimal() {
    const uint64_t bits = total_ * 8;
    const char one = '\x80', zero = 0;
    add(&one, 1);
    while (filled_ != kBlock - 8) add(&zero, 1);
    for (int shift = 56; shift >= 0; shift -= 8) {
      const auto byte = static_cast<char>(bits >> shift & 0xFF);
      add(&byte, 1);
    }
    std::string text;
    for (const auto word : state_) {
      for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 0xF];
    }
    return text;
  }

 private:
  void mix() {
    std::array<uint32_t, 64> words{};
    for (size_t i = 0; i < 16; ++i) {
      for (size_t byte = 0; byte < 4; ++byte) words[i] = words[i] << 8 | block_[4 * i + byte];
    }
    for (size_t i = 16; i < 64; ++i) {
      const auto a = words[i - 15], b = words[i - 2];
      words[i] = words[i - 16] + words[i - 7] + (rotated(a, 7) ^ rotated(a, 18) ^ a >> 3) +
                 (rotated(b, 17) ^ rotated(b, 19) ^ b >> 10);
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (size_t i = 0; i < 64; ++i) {
      const auto first = h + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) +
                         ((e & f) ^ (~e & g)) + kRounds[i] + words[i];
      const auto second =
          (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g;
      g = f;
      f = e;
      e = d + first;
      d = c;
      c = b;
      b = a;
      a = first + second;
    }
    const std::array<uint32_t, 8> added = {a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < 8; ++i) state_[i] += added[i];
    filled_ = 0;
  }

  // The same of the square roots of the first 8 primes.
  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, kBlock> block_{};
  size_t filled_ = 0;
  uint64_t total_ = 0;
};

}  // namespace

std::string sha256(std::string_view data) {
  Hash hash;
  hash.add(data.data(), data.size());
  return hash.hexadecimal();
}

std::string sha256_of_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  Hash hash;
  std::vector<char> part(1 << 16);
  while (file) {
    file.read(part.data(), static_cast<std::streamsize>(part.size()));
    hash.add(part.data(), static_cast<size_t>(file.gcount()));
  }
  if (!file.eof()) throw UserError(path.string() + " cannot be read: " + std::strerror(errno));
  return hash.hexadecimal();
}

}  // namespace fleetbert
