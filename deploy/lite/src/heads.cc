#include "heads.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "error.h"
#include "tensors.h"

namespace fleetbert {
namespace {

constexpr uint64_t kMaxSize = 1u << 20;  // of a dimension
constexpr size_t kAttentionHeads = 2;  // of fastbert, as in exit_heads.py

struct Tensor {
  std::vector<size_t> shape;
  std::vector<float> values;
};

std::map<std::string, Tensor> read_tensors(const std::filesystem::path& path) {
  const TensorFile file(path, kMaxSize);
  std::map<std::string, Tensor> found;
  for (const auto& name : file.names()) {
    found[name] = {file.shape(name), file.values<float>(name, "F32")};
  }
  return found;
}

// out[j] = bias[j] + sum over i of x[i] weight[i, j]
std::vector<float> apply(const Linear& layer, const float* x) {
  auto result = layer.bias;
  for (size_t i = 0; i < layer.in; ++i) {
    const auto* row = layer.weight.data() + i * layer.out;
    for (size_t j = 0; j < layer.out; ++j) result[j] += x[i] * row[j];
  }
  return result;
}

std::vector<float> apply_tanh(const Linear& layer, const float* x) {
  auto result = apply(layer, x);
  for (auto& value : result) value = std::tanh(value);
  return result;
}

// [CLS] and the mean over a text's tokens, side by side.
std::vector<float> pool(const Head& head, const float* hidden, const std::vector<size_t>& real) {
  std::vector<float> read(hidden, hidden + head.width);
  for (size_t i = 0; i < head.width; ++i) {
    float sum = 0;
    for (const auto token : real) sum += hidden[token * head.width + i];
    read.push_back(sum / static_cast<float>(real.size()));
  }
  return read;
}

std::vector<float> two_layers(const Head& head, const float* x) {
  const auto inner = apply_tanh(head.layers.at("inner"), x);
  return apply(head.layers.at("out"), inner.data());
}

// Each token through two layers.
std::vector<float> tokens(const Head& head, const float* hidden, const std::vector<size_t>& real) {
  std::vector<float> logits;
  for (const auto token : real) {
    const auto own = two_layers(head, hidden + token * head.width);
    logits.insert(logits.end(), own.begin(), own.end());
  }
  return logits;
}

// One layer, and the vector that it gives with length 1.
std::vector<float> vector(const Head& head, const std::vector<float>& read) {
  auto found = apply(head.layers.at("out"), read.data());
  float squares = 0;
  for (const auto value : found) squares += value * value;
  for (auto& value : found) value /= std::max(std::sqrt(squares), 1e-12f);
  return found;
}

// FastBERT's student classifier: narrow, attend, classify [CLS].
std::vector<float> fastbert(const Head& head, const float* hidden,
                            const std::vector<size_t>& real) {
  const auto& narrow = head.layers.at("narrow");
  const auto first = apply_tanh(narrow, hidden);
  const auto query = apply(head.layers.at("query"), first.data());
  const auto size = query.size() / kAttentionHeads;
  std::vector<float> values(real.size() * query.size());
  std::vector<float> scores(real.size() * kAttentionHeads);
  std::array<float, kAttentionHeads> top{};
  top.fill(-std::numeric_limits<float>::infinity());
  for (size_t token = 0; token < real.size(); ++token) {
    const auto x = apply_tanh(narrow, hidden + real[token] * head.width);
    const auto key = apply(head.layers.at("key"), x.data());
    const auto value = apply(head.layers.at("value"), x.data());
    std::copy(value.begin(), value.end(),
              values.begin() + static_cast<std::ptrdiff_t>(token * query.size()));
    for (size_t part = 0; part < kAttentionHeads; ++part) {
      float score = 0;
      for (size_t i = part * size; i < (part + 1) * size; ++i) score += query[i] * key[i];
      score /= std::sqrt(static_cast<float>(size));
      scores[token * kAttentionHeads + part] = score;
      top[part] = std::max(top[part], score);
    }
  }
  std::vector<float> mixed(query.size());
  for (size_t part = 0; part < kAttentionHeads; ++part) {
    float sum = 0;
    for (size_t token = 0; token < real.size(); ++token) {
      const auto share = std::exp(scores[token * kAttentionHeads + part] - top[part]);
      sum += share;
      for (size_t i = part * size; i < (part + 1) * size; ++i) {
        mixed[i] += share * values[token * query.size() + i];
      }
    }
    for (size_t i = part * size; i < (part + 1) * size; ++i) mixed[i] /= sum;
  }
  const auto together = apply(head.layers.at("mix"), mixed.data());
  const auto inner = apply_tanh(head.layers.at("inner"), together.data());
  return apply(head.layers.at("out"), inner.data());
}

Linear take_linear(const std::map<std::string, Tensor>& tensors, const std::string& name,
                   const std::filesystem::path& path) {
  const auto weight = tensors.find(name + ".weight"), bias = tensors.find(name + ".bias");
  if (weight == tensors.end() || bias == tensors.end() || weight->second.shape.size() != 2 ||
      bias->second.shape != std::vector<size_t>{weight->second.shape[1]}) {
    throw UserError(path.string() + " has no layer " + name + ": export the variant again");
  }
  return {weight->second.shape[0], weight->second.shape[1], weight->second.values,
          bias->second.values};
}

// The layers of a head, each with the one that it reads from ("": the hidden states).
using Wiring = std::vector<std::pair<std::string, std::string>>;

const Wiring& wiring(const std::string& kind, const std::filesystem::path& path) {
  static const std::map<std::string, Wiring> kinds = {
      {"pooled", {{"inner", ""}, {"out", "inner"}}},
      {"tokens", {{"inner", ""}, {"out", "inner"}}},
      {"vector", {{"out", ""}}},
      {"fastbert",
       {{"narrow", ""},
        {"key", "narrow"},
        {"value", "narrow"},
        {"query", "narrow"},
        {"mix", "value"},
        {"inner", "mix"},
        {"out", "inner"}}},
  };
  const auto found = kinds.find(kind);
  if (found == kinds.end()) {
    throw UserError(path.string() + " has heads of the kind " + kind + ", which this program does "
                    "not know: take the fleetbert-lite of the fleetbert that wrote it");
  }
  return found->second;
}

}  // namespace

std::vector<Head> read_heads(const std::filesystem::path& path, const std::string& kind,
                             const std::vector<size_t>& ends, size_t labels) {
  const auto& layers = wiring(kind, path);
  const bool reads_pool = kind == "pooled" || kind == "vector";
  const auto tensors = read_tensors(path);
  std::vector<Head> heads;
  for (size_t number = 0; number + 1 < ends.size(); ++number) {
    Head head;
    head.kind = kind;
    bool fits = true;
    for (const auto& [name, source] : layers) {
      auto layer = take_linear(tensors, std::to_string(ends[number]) + "." + name, path);
      if (source.empty()) {
        head.width = reads_pool ? layer.in / 2 : layer.in;
        fits &= !reads_pool || layer.in == 2 * head.width;
      } else {
        fits &= layer.in == head.layers.at(source).out;
      }
      head.layers.emplace(name, std::move(layer));
    }
    fits &= head.width > 0 && head.layers.at("out").out == labels;
    fits &= heads.empty() || head.width == heads[0].width;
    if (kind == "fastbert") {
      const auto size = head.layers.at("query").out;
      fits &= size % kAttentionHeads == 0 && head.layers.at("key").out == size &&
              head.layers.at("value").out == size;
    }
    if (!fits) {
      throw UserError(path.string() + ": the sizes of head " + std::to_string(ends[number]) +
                      " do not fit each other or the labels: export the variant again");
    }
    heads.push_back(std::move(head));
  }
  return heads;
}

std::vector<float> head_logits(const Head& head, const float* hidden, const int64_t* ids,
                               size_t length, int64_t pad_id) {
  std::vector<size_t> real;
  for (size_t token = 0; token < length; ++token) {
    if (ids[token] != pad_id) real.push_back(token);
  }
  if (head.kind == "fastbert") return fastbert(head, hidden, real);
  if (head.kind == "tokens") return tokens(head, hidden, real);
  const auto read = pool(head, hidden, real);
  return head.kind == "vector" ? vector(head, read) : two_layers(head, read.data());
}

}  // namespace fleetbert
