// SPDX-License-Identifier: Apache-2.0
// Returns the error of a call, for tests of errors. It can be used from any thread, unlike Catch's
// assertions.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "common/error.h"

namespace ddprun::test {

inline void expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error("expected: " + what);
}

// Returns the error that `call` throws. Throws std::runtime_error if `call` throws none.
template <typename Call>
Error error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  throw std::runtime_error("expected an error, none was thrown");
}

// Returns the code of the error that `call` throws; std::nullopt: it threw none. `what` gets the
// error's text.
template <typename Call>
std::optional<ErrorCode> code_of(Call&& call, std::string* what = nullptr) {
  try {
    call();
  } catch (const Error& error) {
    if (what) *what = error.what();
    return error.code();
  }
  return std::nullopt;
}

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace ddprun::test
