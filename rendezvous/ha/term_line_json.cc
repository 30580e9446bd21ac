// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/term_line_json.h"

#include <algorithm>
#include <string>

#include "common/error.h"
#include "common/log.h"
#include "rendezvous/ha/leader_rows.h"

namespace ddprun::ha {

boost::json::array json_of(const TermLine& line) {
  boost::json::array ids;
  for (const std::string& id : line) ids.emplace_back(id);
  return ids;
}

TermLine line_in(const membership::JsonFields& fields, const char* name) {
  TermLine line = fields.texts(name, kMaxTermLine, membership::kMaxNameBytes);
  if (!std::ranges::all_of(line, [](const auto& id) { return is_term_id(id); })) {
    throw Error(ErrorCode::kProtocol, concat("\"", name, "\" has an id that is no term's"));
  }
  return line;
}

}  // namespace ddprun::ha
