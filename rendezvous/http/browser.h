// SPDX-License-Identifier: Apache-2.0
// Tells requests of a page in a browser from those of a program (docs/security.md). A page of any
// origin can make a local user's browser send requests to servers on this machine and in its
// network.
#pragma once

#include <string>
#include <string_view>

#include "common/endpoint.h"
#include "rendezvous/http/exchange.h"

namespace ddprun::http {

// Returns whether the request has a browser's fields. A browser sends Origin with each WebSocket
// and with all methods but GET and HEAD; ddprun's programs don't.
bool is_of_browser(const Request& request);

// Returns whether the request comes from this server's own page, from no page, or from no browser.
// Both schemes are accepted, since a proxy in front may speak TLS.
bool is_same_origin(const Request& request);

// Returns whether the body has a type that a page may send to any server without a preflight
// request: a form's, or plain text.
bool is_of_form(const Request& request);

// Returns whether the Host field is a numeric address, localhost, or `own_name` or its first part,
// with a port or without. It may be absent, since a browser always sends one. Any other name may be
// a foreign page's, whose owner makes it resolve to this machine ("DNS rebinding"). The page's
// scripts could then use this server as their own.
bool names_this_machine(const Request& request, std::string_view own_name);
bool names_this_machine(const Request& request);  // with the name of gethostname(2)

// Returns whether both ends of a connection are on this machine, by its addresses; false if it has
// ended.
bool is_over_loopback(int socket);

// Returns whether the request came over loopback (`socket`) with a Host that names another machine.
bool is_rebound(const Request& request, int socket);

// Returns the Host that ddprun's programs send over `socket` to `endpoint`. Over loopback it is
// localhost, even if `endpoint` has another name.
std::string host_field(const Endpoint& endpoint, int socket);

// Adds the fields that tell a browser how to treat a page. It applies `policy`
// (Content-Security-Policy), uses only the given type, sends no Referer, and keeps no copy.
void add_page_fields(std::string_view policy, Fields* fields);

inline constexpr char kForeignHost[] =
    "its Host is no name of this machine: ask by an address or as localhost";

}  // namespace ddprun::http
