// Command lines: --name value or --name=value, and words.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine.h"

namespace fleetbert {

class Arguments {
 public:
  // Throws UserError for an option that is not in `known`, is given twice, or lacks its value.
  Arguments(int argc, char** argv, int first, const std::vector<std::string_view>& known);

  bool has(const std::string& name) const { return values_.count(name) != 0; }
  std::string text(const std::string& name, const std::string& otherwise = "") const;
  std::string needed(const std::string& name) const;  // UserError where it is missing
  long number(const std::string& name, long otherwise, long least, long most) const;
  // From 0 to 1; nothing where it is not given.
  std::optional<double> share(const std::string& name) const;
  const std::vector<std::string>& words() const { return words_; }

 private:
  std::map<std::string, std::string> values_;
  std::vector<std::string> words_;
};

// Of --engine, --threads, --power-mode, --speed and --fake-delay-ms.
EngineOptions engine_options(const Arguments& arguments);

// Runs `main` and gives the exit status: 0, what it returns, or 2 and a line for a UserError.
int run_program(int (*main)(int, char**), int argc, char** argv);

}  // namespace fleetbert
