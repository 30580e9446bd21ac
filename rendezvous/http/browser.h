// SPDX-License-Identifier: Apache-2.0
// Tells a page in a browser from a program (docs/security.md). A page of any origin can have the
// browser of a user here ask servers on this machine and in its network.
#pragma once

#include <string>
#include <string_view>

#include "common/endpoint.h"
#include "rendezvous/http/exchange.h"

namespace ddprun::http {

// A browser's fields are there. It sends Origin with each WebSocket and with all but GET and HEAD;
// no program of ours does.
bool is_of_browser(const Request& request);

// The request is of the page that is asked itself, or of no browser. A proxy in front may be the
// one that speaks TLS: either scheme will do.
bool is_same_origin(const Request& request);

// The body's type is one that a page may send anywhere without a question before: a form's, or
// plain text.
bool is_of_form(const Request& request);

// The Host field is a numeric address, localhost, or `own_name` or its first part, with a port or
// without. Or there is none: a browser always sends one. Any other name may be that of a page whose
// owner makes it lead here ("DNS rebinding"). Its scripts then take this server for their own.
bool names_this_machine(const Request& request, std::string_view own_name);
bool names_this_machine(const Request& request);  // by gethostname(2)

// Both ends of a connection are on this machine, by its addresses; false where it has ended.
bool is_over_loopback(int socket);

// The request came over loopback, by a Host that names another machine. `socket`: its connection.
bool is_rebound(const Request& request, int socket);

// The Host that our programs send over `socket` to what they call `endpoint`: over loopback one
// that names this machine, whatever alias was asked for.
std::string host_field(const Endpoint& endpoint, int socket);

// Tells a browser how to treat a page: by `policy` (Content-Security-Policy), as the type that is
// named and no other. It tells no other server of the page, and keeps no copy.
void add_page_fields(std::string_view policy, Fields* fields);

inline constexpr char kForeignHost[] =
    "its Host is no name of this machine: ask by an address or as localhost";

}  // namespace ddprun::http
