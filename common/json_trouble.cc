// SPDX-License-Identifier: Apache-2.0
#include "common/json_trouble.h"

#include <boost/system/system_error.hpp>

#include "common/error.h"
#include "common/log.h"

namespace ddprun {

std::string json_trouble(const std::exception& error) {
  if (const auto* own = dynamic_cast<const Error*>(&error)) return own->what();
  const auto* of_library = dynamic_cast<const boost::system::system_error*>(&error);
  if (of_library != nullptr) return concat("it is no such JSON: ", of_library->code().message());
  return "a field is missing, or of another kind";
}

}  // namespace ddprun
