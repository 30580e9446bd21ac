// SPDX-License-Identifier: Apache-2.0
#include "common/named_file.h"

#include <utility>

#include "common/error.h"
#include "common/fd_text.h"
#include "common/regular_file.h"
#include "common/text.h"

namespace ddprun {

std::string text_of_named_file(const std::string& path) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 20;
  const RegularFile file = open_regular_file(path);
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, "can't read " + one_line(path) + ": " + why);
  };
  if (!file.problem.empty()) refuse(file.problem);
  ReadText read = read_text(file.fd.get(), kMostBytes + 1);
  if (read.error != 0) refuse(errno_text(read.error));
  if (read.text.size() > kMostBytes) refuse("it has more than 1 MiB");
  return std::move(read.text);
}

}  // namespace ddprun
