#include "oip_tensors.h"

#include <algorithm>
#include <limits>

#include "oip.h"
#include "unicode.h"

namespace fleetbert {

using nlohmann::json;

namespace {

// [texts] or [texts, tokens]; all positive, the first within the limit.
std::vector<size_t> read_shape(const InputTensor& tensor, size_t rank, const Limits& limits) {
  const auto where = "shape of input '" + tensor.name + "'";
  const std::string wanted = rank == 1 ? "[texts]" : "[texts, tokens]";
  const auto& shape = member(*tensor.entry, "shape");
  const auto is_integer = [](const json& size) { return size.is_number_integer(); };
  if (!shape.is_array() || !std::all_of(shape.begin(), shape.end(), is_integer)) {
    refuse(where + " has to be a list of integers: " + wanted);
  }
  if (shape.size() != rank) {
    refuse(where + " has " + std::to_string(shape.size()) + " dimensions; it has to be " + wanted);
  }
  std::vector<size_t> sizes;
  for (const auto& size : shape) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() < 1) {
      refuse(where + " is " + shortened(shape.dump()) + "; each dimension has to be at least 1");
    }
    sizes.push_back(static_cast<size_t>(
        std::min<uint64_t>(size.get<uint64_t>(), std::numeric_limits<size_t>::max())));
  }
  if (sizes[0] > limits.max_texts) {
    refuse("input '" + tensor.name + "' has " + std::to_string(sizes[0]) +
               " texts; this server takes at most " + std::to_string(limits.max_texts) +
               " in a request",
           413);
  }
  return sizes;
}

[[noreturn]] void wrong_count(const InputTensor& tensor, size_t found) {
  refuse("data of input '" + tensor.name + "' has " + std::to_string(found) +
         " elements, which does not fit its shape " + member(*tensor.entry, "shape").dump());
}

const json& read_data(const InputTensor& tensor) {
  const auto& data = member(*tensor.entry, "data");
  if (!data.is_array()) {
    refuse("data of input '" + tensor.name + "' is " + show(data) + "; it has to be a list");
  }
  return data;
}

// The little-endian number that `size` bytes are.
uint64_t little_endian(std::string_view bytes, size_t size) {
  uint64_t value = 0;
  for (size_t i = size; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

std::vector<std::string> split_raw(const InputTensor& tensor, size_t count) {
  auto bytes = *tensor.raw;
  std::vector<std::string> texts;
  for (size_t number = 0; number < count; ++number) {
    const bool has_length = bytes.size() >= 4;
    const auto length = has_length ? little_endian(bytes, 4) : 0;
    if (!has_length || length > bytes.size() - 4) {
      refuse("element " + std::to_string(number) + " of input '" + tensor.name +
             "' goes past the tensor's " + std::to_string(tensor.raw->size()) + " bytes");
    }
    texts.emplace_back(bytes.substr(4, static_cast<size_t>(length)));
    if (!is_utf8(texts.back())) {
      refuse("element " + std::to_string(number) + " of input '" + tensor.name + "' is not UTF-8");
    }
    bytes.remove_prefix(4 + static_cast<size_t>(length));
  }
  if (!bytes.empty()) {
    refuse("input '" + tensor.name + "' has " + std::to_string(bytes.size()) +
           " bytes of data after its " + std::to_string(count) + " elements");
  }
  return texts;
}

int64_t read_integer(const json& value, const InputTensor& tensor, size_t number) {
  if (!value.is_number_integer()) {
    refuse("element " + std::to_string(number) + " of input '" + tensor.name + "' is " +
           show(value) + "; it has to be an integer");
  }
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    refuse("input '" + tensor.name + "' holds " + value.dump() + ", which is no INT64");
  }
  return value.get<int64_t>();
}

}  // namespace

const json& read_list(const json& message, const char* key) {
  static const json empty = json::array();
  const auto& entries = member(message, key);
  if (entries.is_null()) return empty;
  if (!entries.is_array()) {
    refuse(std::string(key) + " is " + show(entries) + "; it has to be a list");
  }
  return entries;
}

const json& read_parameters(const json& message, const std::string& where) {
  static const json empty = json::object();
  const auto& parameters = member(message, "parameters");
  if (parameters.is_null()) return empty;
  if (!parameters.is_object()) {
    refuse("parameters of " + where + " are " + show(parameters) + "; they have to be an object");
  }
  for (const auto& [key, value] : parameters.items()) {
    if (value.is_structured()) {
      refuse("parameter " + in_quotes(key) + " of " + where + " is " + show(value) +
             "; it has to be a string, a number, true or false");
    }
  }
  return parameters;
}

bool read_flag(const json& value, const std::string& key, const std::string& where) {
  if (!value.is_boolean()) {
    refuse("parameter '" + key + "' of " + where + " is " + show(value) +
           "; it has to be true or false");
  }
  return value.get<bool>();
}

std::string read_name(const json& entry, const std::string& where) {
  if (!entry.is_object()) refuse(where + " is " + show(entry) + "; it has to be an object");
  const auto& name = member(entry, "name");
  if (!name.is_string()) refuse(where + ".name is " + show(name) + "; it has to be a string");
  for (const auto* key : {"shared_memory_region", "classification"}) {
    if (read_parameters(entry, where).contains(key)) {
      refuse("parameter '" + std::string(key) + "' of " + where + " is not offered by this server");
    }
  }
  return name.get<std::string>();
}

size_t read_header_length(const std::string& text, size_t body) {
  const bool digits = !text.empty() && text.size() < 19 &&
                      text.find_first_not_of("0123456789") == std::string::npos;
  if (!digits) {
    refuse(std::string(kHeadLength) + " is " + in_quotes(text) +
           "; it has to be a number of bytes");
  }
  const auto length = std::stoull(text);
  if (length > body) {
    refuse(std::string(kHeadLength) + " is " + text + ", but the body has " + std::to_string(body) +
           " bytes");
  }
  return static_cast<size_t>(length);
}

std::string_view RestOfBody::take(const json& size, const std::string& name) {
  const auto of = "binary_data_size of input " + name;
  if (!size.is_number_unsigned()) {
    refuse(of + " is " + show(size) + "; it has to be a number of bytes");
  }
  if (!is_there_) {
    refuse("input " + name + " has binary_data_size, which needs the header " + kHeadLength);
  }
  const auto wanted = size.get<uint64_t>();
  if (wanted > bytes_.size()) {
    refuse(of + " is " + std::to_string(wanted) + ", but the body has " +
           std::to_string(bytes_.size()) + " bytes left");
  }
  const auto taken = bytes_.substr(0, static_cast<size_t>(wanted));
  bytes_.remove_prefix(taken.size());
  return taken;
}

std::vector<std::string> read_texts(const InputTensor& tensor, const Limits& limits) {
  const auto& datatype = member(*tensor.entry, "datatype");
  if (datatype != "BYTES") {
    refuse("datatype of input '" + tensor.name + "' is " + show(datatype) +
           "; it has to be BYTES");
  }
  const auto& shape = member(*tensor.entry, "shape");
  const bool is_column = shape.is_array() && shape.size() == 2 && shape[1].is_number_integer() &&
                         shape[1] == 1;
  const auto count = read_shape(tensor, is_column ? 2 : 1, limits)[0];
  std::vector<std::string> texts;
  if (tensor.raw) {
    texts = split_raw(tensor, count);
  } else {
    const auto& data = read_data(tensor);
    if (data.size() != count) wrong_count(tensor, data.size());
    for (size_t number = 0; number < count; ++number) {
      const bool is_row = is_column && data[number].is_array() && data[number].size() == 1;
      const auto& text = is_row ? data[number][0] : data[number];
      if (!text.is_string()) {
        refuse("element " + std::to_string(number) + " of input '" + tensor.name + "' is " +
               show(text) + "; it has to be a string (BYTES)");
      }
      texts.push_back(text.get<std::string>());
    }
  }
  check_texts(texts, tensor.name, limits);
  return texts;
}

Integers read_integers(const InputTensor& tensor, const Limits& limits, size_t max_length,
                       int64_t limit, const std::string& meaning) {
  const auto& datatype = member(*tensor.entry, "datatype");
  if (datatype != "INT64" && datatype != "INT32") {
    refuse("datatype of input '" + tensor.name + "' is " + show(datatype) +
           "; it has to be INT64 or INT32");
  }
  const auto shape = read_shape(tensor, 2, limits);
  if (shape[1] > max_length) {
    refuse("input '" + tensor.name + "' has " + std::to_string(shape[1]) +
           " tokens a text; the model takes at most " + std::to_string(max_length));
  }
  Integers found{shape[0], shape[1], {}};
  const auto count = found.rows * found.columns;
  if (tensor.raw) {
    const size_t size = datatype == "INT64" ? 8 : 4;
    if (tensor.raw->size() != count * size) {
      refuse("input '" + tensor.name + "' has " + std::to_string(tensor.raw->size()) +
             " bytes of data; its shape and datatype need " + std::to_string(count * size));
    }
    for (size_t i = 0; i < count; ++i) {
      const auto bits = little_endian(tensor.raw->substr(i * size), size);
      found.values.push_back(size == 8 ? static_cast<int64_t>(bits)
                                       : static_cast<int32_t>(static_cast<uint32_t>(bits)));
    }
  } else {
    const auto& data = read_data(tensor);
    if (!data.empty() && data[0].is_array()) {
      if (data.size() != found.rows) {
        refuse("data of input '" + tensor.name + "' has " + std::to_string(data.size()) +
               " rows, which does not fit its shape " + member(*tensor.entry, "shape").dump());
      }
      for (size_t row = 0; row < found.rows; ++row) {
        if (!data[row].is_array() || data[row].size() != found.columns) {
          refuse("row " + std::to_string(row) + " of input '" + tensor.name + "' is " +
                 show(data[row]) + "; its shape asks for a list of " +
                 std::to_string(found.columns));
        }
        for (const auto& value : data[row]) {
          found.values.push_back(read_integer(value, tensor, found.values.size()));
        }
      }
    } else {
      if (data.size() != count) wrong_count(tensor, data.size());
      for (const auto& value : data) {
        found.values.push_back(read_integer(value, tensor, found.values.size()));
      }
    }
  }
  for (size_t i = 0; i < count; ++i) {
    if (found.values[i] < 0 || found.values[i] >= limit) {
      refuse("input '" + tensor.name + "' holds " + std::to_string(found.values[i]) + " at [" +
             std::to_string(i / found.columns) + ", " + std::to_string(i % found.columns) + "]; " +
             meaning + " are 0 to " + std::to_string(limit - 1));
    }
  }
  return found;
}

}  // namespace fleetbert
