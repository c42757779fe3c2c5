#include "tensors.h"

#include "error.h"

namespace fleetbert {
namespace {

constexpr uint64_t kMaxFile = 1u << 30;

}  // namespace

TensorFile::TensorFile(const std::filesystem::path& path, uint64_t largest)
    : path_(path), text_(read_file(path, kMaxFile)) {
  uint64_t length = 0;
  for (size_t i = 0; i < 8 && i < text_.size(); ++i) {
    length |= static_cast<uint64_t>(static_cast<unsigned char>(text_[i])) << 8 * i;
  }
  if (text_.size() < 8 || length > text_.size() - 8) {
    throw UserError(path.string() + " is cut short: copy the bundle again");
  }
  const auto data = std::string_view(text_).substr(8 + static_cast<size_t>(length));
  header_ = parse_json(text_.substr(8, static_cast<size_t>(length)), path);
  const Reader reader(header_, "", path_);
  for (const auto& name : reader.keys()) {
    if (name == "__metadata__") continue;
    const auto entry = reader.at(name);
    Tensor tensor;
    tensor.dtype = entry.at("dtype").text();
    for (const auto& dimension : entry.at("shape").list()) {
      const auto number = dimension.number();
      if (number < 1 || number > largest) dimension.fail("is out of bounds");
      tensor.shape.push_back(static_cast<size_t>(number));
      tensor.count *= number;
      if (tensor.count > data.size()) dimension.fail("asks for more than the file has");
    }
    const auto offsets = entry.at("data_offsets").list();
    if (offsets.size() != 2 || offsets[1].number() > data.size() ||
        offsets[0].number() > offsets[1].number()) {
      entry.at("data_offsets").fail("does not fit the shape or the file");
    }
    const auto start = static_cast<size_t>(offsets[0].number());
    tensor.bytes = data.substr(start, static_cast<size_t>(offsets[1].number()) - start);
    tensors_.emplace(name, std::move(tensor));
  }
}

std::vector<std::string> TensorFile::names() const {
  std::vector<std::string> found;
  for (const auto& [name, tensor] : tensors_) found.push_back(name);
  return found;
}

std::string_view TensorFile::bytes(const std::string& name) const {
  check(name, "U8", 1);
  return at(name).bytes;
}

nlohmann::json TensorFile::metadata(const std::string& key) const {
  return parse_json(Reader(header_, "", path_).at("__metadata__").at(key).text(), path_);
}

const TensorFile::Tensor& TensorFile::at(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) Reader(header_, "", path_).fail("has no " + name);
  return found->second;
}

void TensorFile::check(const std::string& name, const char* dtype, size_t size) const {
  const auto& tensor = at(name);
  const Reader reader(header_, "", path_);
  if (tensor.dtype != dtype) reader.at(name).at("dtype").fail(std::string("is not ") + dtype);
  if (tensor.bytes.size() != tensor.count * size) {
    reader.at(name).at("data_offsets").fail("does not fit the shape or the file");
  }
}

}  // namespace fleetbert
