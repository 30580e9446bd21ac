// SPDX-License-Identifier: Apache-2.0
// What a page's fields are in a table.
#pragma once

#include <boost/json/value.hpp>
#include <string>

#include "common/log.h"

namespace ddprun::ctl {

// On one line, whatever the rendezvous says. Throws where there is no such text.
inline std::string text_at(const boost::json::value& object, const char* name) {
  return one_line(std::string(object.at(name).as_string()));
}

}  // namespace ddprun::ctl
