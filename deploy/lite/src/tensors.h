// A file of safetensors: the length of a JSON header (8 bytes), the header, the tensors' bytes.
// https://github.com/huggingface/safetensors#format
#pragma once

#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "json_file.h"

namespace fleetbert {

class TensorFile {
 public:
  // largest: of a dimension. Throws UserError.
  TensorFile(const std::filesystem::path& path, uint64_t largest);
  TensorFile(const TensorFile&) = delete;  // its views are into itself

  std::vector<std::string> names() const;
  bool has(const std::string& name) const { return tensors_.count(name) != 0; }
  const std::vector<size_t>& shape(const std::string& name) const { return at(name).shape; }

  // Those of a tensor, whose dtype (F32, U8, ...) has to be that of T. Throws UserError.
  template <class T>
  std::vector<T> values(const std::string& name, const char* dtype) const {
    const auto& tensor = at(name);
    check(name, dtype, sizeof(T));
    std::vector<T> found(tensor.bytes.size() / sizeof(T));
    // All targets are little-endian, as the file is.
    if (!found.empty()) std::memcpy(found.data(), tensor.bytes.data(), tensor.bytes.size());
    return found;
  }
  // The bytes of a U8 tensor.
  std::string_view bytes(const std::string& name) const;

  // What the file's metadata says, itself JSON. Throws UserError.
  nlohmann::json metadata(const std::string& key) const;

  const std::filesystem::path& path() const { return path_; }

 private:
  struct Tensor {
    std::string dtype;
    std::vector<size_t> shape;
    uint64_t count = 1;
    std::string_view bytes;
  };
  const Tensor& at(const std::string& name) const;
  void check(const std::string& name, const char* dtype, size_t size) const;

  std::filesystem::path path_;
  std::string text_;
  nlohmann::json header_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace fleetbert
