// SPDX-License-Identifier: Apache-2.0
// variants::variant is used like std::variant. Compilers need half the time for its copies, moves
// and visits, which every message and every event of the control plane has.
#pragma once

#include <boost/variant2/variant.hpp>

namespace ddprun {
namespace variants = boost::variant2;
}  // namespace ddprun
