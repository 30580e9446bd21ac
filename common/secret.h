// SPDX-License-Identifier: Apache-2.0
// A secret that was read from a file. It is kept in one place of memory, never printed and never
// copied.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/environment.h"

namespace ddprun {

inline constexpr std::size_t kMinSecretBytes = 16;
inline constexpr std::size_t kMaxSecretBytes = 2048;

// The secret is on its own page of memory. Core dumps leave the page out, forked children have it
// empty, and the destructor wipes it. It is not swapped if the limit of locked memory allows that.
// All who prove or check the secret share it.
class Secret {
 public:
  // Reads the file's content without white space around it. The file must be a regular one of this
  // user or of root, and hidden from others. Its mode is 0600 or less, or 0640 if it is root's.
  // Throws Error(kInvalidArgument), one line that names the file and what to do.
  static std::shared_ptr<const Secret> from_file(const std::string& path);
  // Does the same; the message begins with the flag that named the file: "--token-file".
  static std::shared_ptr<const Secret> from_flag(const char* flag, const std::string& path);

  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;
  ~Secret();

  std::span<const std::uint8_t> bytes() const { return {text_, size_}; }

 private:
  Secret();

  std::uint8_t* page_ = nullptr;
  std::size_t page_bytes_ = 0;
  const std::uint8_t* text_ = nullptr;  // in page_
  std::size_t size_ = 0;
};

// Returns the problem if DDPRUN_TOKEN_FILE is set, but empty, as TOKEN_FILE=$X leaves it with an
// unset variable. A user who sets it wants a token, and everything would run without one. Empty:
// there is no problem.
std::string token_variable_problem(const Environment& environment);

// Returns why others than this user and root can read, or change, the file at `path`, whose stat()
// is `info`. The rules are those of Secret::from_file(). With kMayRead it only says why they can
// change it. Empty: they can't.
enum class Others { kMayNothing, kMayRead };
std::string openness(const std::string& path, const struct stat& info,
                     Others others = Others::kMayNothing);

}  // namespace ddprun
