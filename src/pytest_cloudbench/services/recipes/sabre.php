<?php
// Serves the folder FILES by sabre/dav, to one user, whose password is in SECRET. PHP's own web server runs it.
error_reporting(E_ALL & ~E_DEPRECATED);  // Debian's sabre/dav is older than its PHP
set_error_handler(function ($level, $message, $file, $line) {  // as sabre/dav's own example: else a failed write is a 201
    if (error_reporting() & $level) {
        throw new ErrorException($message, 0, $level, $file, $line);
    }
});
require_once 'Sabre/autoload.php';

use Sabre\DAV;

class OneUser extends DAV\Auth\Backend\AbstractBasic
{
    protected function validateUserPass($user, $password)
    {
        return $user === 'cloudbench' && hash_equals(getenv('SECRET'), $password);
    }
}

$server = new DAV\Server(new DAV\FS\Directory(getenv('FILES')));
$server->setBaseUri('/');
$server->addPlugin(new DAV\Auth\Plugin(new OneUser(), 'files'));
$server->addPlugin(new DAV\Locks\Plugin(new DAV\Locks\Backend\File(getenv('LOCKS'))));
$server->exec();
