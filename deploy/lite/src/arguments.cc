#include "arguments.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <iostream>

#include "error.h"

namespace fleetbert {

Arguments::Arguments(int argc, char** argv, int first,
                     const std::vector<std::string_view>& known) {
  for (int i = first; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.rfind("--", 0) != 0) {
      words_.push_back(word);
      continue;
    }
    if (word == "--") {
      words_.insert(words_.end(), argv + i + 1, argv + argc);
      return;
    }
    const auto equals = word.find('=');
    const auto name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      std::string names;
      for (const auto one : known) names += " --" + std::string(one);
      throw UserError("--" + name + " is no option; there are:" + names);
    }
    if (has(name)) throw UserError("--" + name + " is given twice");
    if (equals == std::string::npos && i + 1 == argc) {
      throw UserError("--" + name + " needs a value after it");
    }
    values_[name] = equals == std::string::npos ? argv[++i] : word.substr(equals + 1);
  }
}

std::string Arguments::text(const std::string& name, const std::string& otherwise) const {
  const auto found = values_.find(name);
  return found == values_.end() ? otherwise : found->second;
}

std::string Arguments::needed(const std::string& name) const {
  if (!has(name)) throw UserError("--" + name + " is missing; see --help");
  return text(name);
}

long Arguments::number(const std::string& name, long otherwise, long least, long most) const {
  if (!has(name)) return otherwise;
  const auto value = text(name);
  char* end = nullptr;
  errno = 0;
  const long found = std::strtol(value.c_str(), &end, 10);
  if (value.empty() || *end != '\0' || errno != 0 || found < least || found > most) {
    throw UserError("--" + name + " is '" + value + "'; it has to be a number from " +
                    std::to_string(least) + " to " + std::to_string(most));
  }
  return found;
}

std::optional<double> Arguments::share(const std::string& name) const {
  if (!has(name)) return std::nullopt;
  const auto value = text(name);
  char* end = nullptr;
  const double found = std::strtod(value.c_str(), &end);
  if (value.empty() || *end != '\0' || !(found >= 0 && found <= 1)) {
    throw UserError("--" + name + " is '" + value + "'; it has to be a number from 0 to 1");
  }
  return found;
}

EngineOptions engine_options(const Arguments& arguments) {
  EngineOptions options;
  options.engine = arguments.text("engine");
  options.threads = static_cast<int>(arguments.number("threads", 1, 1, 256));
  options.power_mode = arguments.text("power-mode", options.power_mode);
  options.delay_ms = static_cast<int>(arguments.number("fake-delay-ms", 0, 0, 600000));
  options.speed = arguments.share("speed");
  const auto& modes = power_modes();
  if (std::find(modes.begin(), modes.end(), options.power_mode) == modes.end()) {
    std::string names;
    for (const auto& mode : modes) names += (names.empty() ? "" : ", ") + mode;
    throw UserError("--power-mode is '" + options.power_mode + "'; choose one of " + names);
  }
  return options;
}

int run_program(int (*main)(int, char**), int argc, char** argv) {
  try {
    const int status = main(argc, argv);
    std::cout.flush();
    if (!std::cout) throw UserError("the output cannot be written");
    return status;
  } catch (const UserError& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << " (a fault of this program or of its model)\n";
    return 1;
  }
}

}  // namespace fleetbert
