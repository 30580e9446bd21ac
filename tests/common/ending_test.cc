// SPDX-License-Identifier: Apache-2.0
#include "common/ending.h"

#include <boost/system/system_error.hpp>

#include "common/error.h"
#include "common/json.h"
#include "tests/support/catch.h"

namespace ddprun {
namespace {

TEST_CASE("ending_by: a file that can't be written has a code of its own") {
  CHECK(ending_by(WriteError("can't write a: No space left on device")).code ==
        ExitCode::kOutputLost);
  CHECK(ending_by(Error(ErrorCode::kSystem, "fork")).code == ExitCode::kInternal);
  CHECK(ending_by(Error(ErrorCode::kResourceExhausted, "threads")).code == ExitCode::kUsage);
}

TEST_CASE("json_trouble: it never says where in a library's source it was thrown") {
  const boost::system::error_code error(EINVAL, boost::system::generic_category());
  CHECK(json_trouble(boost::system::system_error(error, "at /usr/include/x.hpp:7")) ==
        "it is no such JSON: Invalid argument");
  CHECK(json_trouble(std::out_of_range("at /usr/include/x.hpp:7")) ==
        "a field is missing, or of another kind");
  CHECK(json_trouble(Error(ErrorCode::kProtocol, "there is no phase \"x\"")) ==
        "there is no phase \"x\"");
}

}  // namespace
}  // namespace ddprun
