// SPDX-License-Identifier: Apache-2.0
#include "common/ending.h"

#include <sys/resource.h>

#include <boost/system/system_error.hpp>

#include "common/text.h"

namespace ddprun {
namespace {

bool is_out_of_descriptors(const boost::system::error_code& error) {
  return error == boost::system::errc::too_many_files_open ||
         error == boost::system::errc::too_many_files_open_in_system;
}

std::string too_few_descriptors() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return concat("too few files may be open, ", limit.rlim_cur,
                " in this process: ulimit -n 65536, or LimitNOFILE= of its unit");
}

}  // namespace

Ending ending_by(const std::exception& error) {
  if (dynamic_cast<const WriteError*>(&error) != nullptr)
    return {error.what(), ExitCode::kOutputLost};
  if (const auto* own = dynamic_cast<const Error*>(&error)) {
    return {own->what(), exit_code_for(own->code())};
  }
  const auto* of_asio = dynamic_cast<const boost::system::system_error*>(&error);
  if (of_asio != nullptr && is_out_of_descriptors(of_asio->code())) {
    return {too_few_descriptors(), exit_code_for(ErrorCode::kResourceExhausted)};
  }
  return {concat("internal error: ", error.what()), ExitCode::kInternal};
}

}  // namespace ddprun
