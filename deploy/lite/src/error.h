#pragma once

#include <stdexcept>
#include <string>

namespace fleetbert {

// Something the user can mend: one sentence that says what, where and what to do.
class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace fleetbert
